"""The model hub: faults, names, pinned commits, and cached files where it cannot be reached."""

import io
from collections.abc import Callable

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.hf_api import ModelInfo

from sie_triton.errors import LoadError
from sie_triton.models.catalog import select
from sie_triton.models.weights import locate
from sie_triton.models.weights.locate import SMALL_FILES
from tests.support.hub import BIG, MODEL, Hub, load
from tests.support.models import save_bert


def refusing(status: int) -> Callable[[Hub, pytest.MonkeyPatch], object]:
    return lambda hub, _: hub.refused.update({"org/name": (status, "", "")})


NOWHERE = "http://127.0.0.1:9"
CASES: dict[str, tuple[Callable[[Hub, pytest.MonkeyPatch], object], str, str]] = {
    "missing": (
        lambda hub, _: hub.repos.clear(),
        "the hub has no org/name, or HF_TOKEN does not give access to it",
        "not found",
    ),
    "gated": (lambda hub, _: hub.gated.add("org/name"), "accept its terms on the hub, then set HF_TOKEN", "gated"),
    "wrong token": (lambda _, patch: patch.setenv("HF_TOKEN", "hf_no"), "does not accept this HF_TOKEN", "gated"),
    "weak token": (refusing(403), "HF_TOKEN has no read access to it", "gated"),
    "broken": (refusing(503), "answers with status 503", "network"),
    "no hub": (lambda _, patch: patch.setattr(constants, "ENDPOINT", NOWHERE), f"reached at {NOWHERE}", "network"),
    "silent": (lambda hub, _: setattr(hub, "silent", True), "takes too long to answer", "network"),
    "too large": (lambda hub, _: setattr(hub, "size_said", 10**18), "needs 1000000000000 MB more in", "disk full"),
    "offline": (lambda _, patch: patch.setattr(constants, "HF_HUB_OFFLINE", True), "HF_HUB_OFFLINE is set", "network"),
}


@pytest.mark.timeout(45)  # a silent hub is silent for 60 s
@pytest.mark.parametrize(("arrange", "said", "reason"), CASES.values(), ids=CASES)
def test_faults_of_the_hub_are_reported_in_time(hub, tmp_path, monkeypatch, arrange, said, reason):
    hub.put("org/name", MODEL)
    arrange(hub, monkeypatch)
    with pytest.raises(LoadError, match=said) as told:
        load(tmp_path)
    assert told.value.reason == reason
    assert len(str(told.value).splitlines()) == 1


def test_a_missing_hub_revision_is_reported(hub, tmp_path):
    hub.put("org/name", MODEL)
    with pytest.raises(LoadError, match="org/name has no revision v9; hf_revision must be a branch") as told:
        load(tmp_path, "org/name@v9")
    assert told.value.reason == "not found"


@pytest.mark.parametrize("name", ["a/b/c", "org/na--me", "../x", "org/name x", ""])
def test_invalid_hub_ids_are_refused_without_a_query(hub, tmp_path, name):
    with pytest.raises(LoadError, match="is not a valid hub id") as told:
        load(tmp_path, name)
    assert told.value.is_permanent
    assert hub.asked == []


def test_names_that_lead_elsewhere_are_refused(hub, tmp_path):
    hub.put("org/name", {"../../../../elsewhere.json": b"{}"})
    with pytest.raises(LoadError, match="must be a path inside"):
        load(tmp_path)
    assert not list(tmp_path.rglob("elsewhere.json"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sha": "x"}, "did not return a commit and its files"),
        ({"siblings": [{"rfilename": None}]}, "did not return a commit and its files"),
        ({"siblings": [5]}, "is not a model hub"),
        ({"siblings": 5}, "is not a model hub"),
        ({"lastModified": 5}, "is not a model hub"),
    ],
)
def test_a_listing_that_is_none_is_an_error(monkeypatch, tmp_path, wrong, said):
    info = {"id": "org/name", "sha": "a" * 40, "siblings": [{"rfilename": "config.json"}]}
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: ModelInfo(**{**info, **wrong}))
    with pytest.raises(LoadError, match=f"^weights: org/name: {constants.ENDPOINT} {said}") as told:
        locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES)
    assert told.value.reason == "network"


def test_a_renamed_repository_is_found(hub, tmp_path, caplog):
    hub.put("org/newer", MODEL)
    hub.renamed["org/name"] = "org/newer"
    assert (load(tmp_path) / "model.safetensors").read_bytes() == BIG
    assert "org/name has been renamed to org/newer" in caplog.text


@pytest.mark.parametrize("how", ["silent", "forbidden"])
def test_cached_files_are_used_where_the_hub_cannot_be_reached(hub, tmp_path, how, caplog):
    hub.put("org/name", MODEL)
    directory = load(tmp_path)
    hub.silent = True
    assert load(tmp_path, allow_hub=how == "silent") == directory
    assert ("the local cache has commit" in caplog.text) == (how == "silent")


def test_cached_small_files_do_not_replace_missing_weights(hub, tmp_path):
    hub.put("org/name", MODEL)
    locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES)
    hub.silent = True
    with pytest.raises(LoadError, match="takes too long to answer") as told:
        load(tmp_path)
    assert not told.value.is_permanent


def test_pickles_are_fetched_only_where_they_are_needed_and_allowed(hub, tmp_path):
    import torch

    file = io.BytesIO()
    torch.save({"a": torch.zeros(5000)}, file)
    both = {**MODEL, "pytorch_model.bin": file.getvalue()}
    hub.put("org/name", both)
    load(tmp_path, allow_pickle="tensors")
    hub.put("org/name", {name: both[name] for name in both if name != "model.safetensors"})
    with pytest.raises(LoadError, match=r"hub://org/name: pytorch_model.bin: weights only as pickles"):
        load(tmp_path)
    assert hub.num_asked("pytorch_model", "HEAD") == 0
    assert (load(tmp_path, allow_pickle="tensors") / "model.safetensors").is_file()
    hub.silent = True
    assert (load(tmp_path, allow_pickle="tensors") / "model.safetensors").is_file()


def test_processes_that_share_a_pin_get_the_same_commit(hub, tmp_path):
    first = hub.put("org/name", MODEL)
    pin = tmp_path / "m.revision"
    small = locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES, pin=pin)
    second = hub.put("org/name", {**MODEL, "model.safetensors": BIG[::-1]})
    hub.asked.clear()
    assert small == load(tmp_path, pin=pin)
    assert small.name == first
    assert hub.num_asked("/api/") == 0, "what is pinned is not looked up again"
    assert load(tmp_path, pin=tmp_path / "of another server").name == second
    # Another model file of the same name.
    assert load(tmp_path, f"org/name@{second}", pin=pin).name == second


def test_a_pin_made_offline_is_kept(hub, tmp_path):
    first = hub.put("org/name", MODEL)
    locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES)
    pin = tmp_path / "m.revision"
    hub.silent = True
    locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES, pin=pin)
    hub.silent = False
    hub.put("org/name", {**MODEL, "model.safetensors": BIG[::-1]})
    assert load(tmp_path, pin=pin).name == first


def test_a_hub_id_is_pinned_to_the_inspected_commit(hub, tmp_path, minilm_directory):
    commit = hub.put("org/name", save_bert(tmp_path, minilm_directory))
    (model,) = select(["org/name"], None, allow_hub=True).models
    assert model.weights == f"hub://org/name@{commit}"
    assert hub.num_asked("safetensors") == 0


def test_preloaded_models_are_fetched_before_triton_starts(hub, tmp_path, minilm_directory):
    from rich.console import Console

    from sie_triton.models.catalog import recognise
    from sie_triton.server.fetch import fetch_preloaded
    from sie_triton.settings import read_settings

    directory = save_bert(tmp_path, minilm_directory)
    commit = hub.put("org/name", directory)
    models = [recognise(directory, name, {"hf_id": name}) for name in ("org/name", "org/gone", "org/other")]
    settings = read_settings(data_dir=tmp_path, preload_models="org/name,org/gone", device="cpu")
    settings.status_dir.mkdir()
    said = io.StringIO()
    fetch_preloaded(settings, models, Console(file=said, width=300))
    assert "fetching org/name from the hub" in said.getvalue()
    assert "warning: org/gone cannot be loaded: weights: the hub has no org/gone" in said.getvalue()
    assert commit in (settings.status_dir / "org__name.revision").read_text()
    assert hub.num_asked("other") == 0
    assert sum(hub.sent.values()) > 10**6
