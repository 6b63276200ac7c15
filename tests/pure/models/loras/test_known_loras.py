"""LoRA adapters that requests may name (model file, added at run time, hub); errors for others."""

import stat
from dataclasses import replace

import numpy as np
import pytest

from sie_triton.contract import VERBS
from sie_triton.contract.spec import Profile, Runtime
from sie_triton.errors import InputError
from sie_triton.models import known_loras
from sie_triton.models.families import model_of
from sie_triton.models.known_loras import KnownLoras, add, added_path, read, remove
from sie_triton.pipeline.stages.preprocess import Preprocess
from sie_triton.records.status import StatusWriter
from tests.support.lora_families import set_takes_loras
from tests.support.stages import asked, run, spec

FILE = {"banking": "hub://org/bge-lora", "both": "/of/the/file"}


@pytest.fixture
def path(tmp_path):
    return added_path(tmp_path / "loras", "org/m")


@pytest.fixture
def known(tmp_path):
    """Factory of the KnownLoras of a model whose file has two adapters."""

    def made(**runtime):
        given = Runtime(loras_dir=str(tmp_path / "loras"), **runtime)
        return KnownLoras(spec(model="org/m", loras=FILE, runtime=given))

    return made


def test_an_added_adapter_is_known_at_once_and_the_model_file_takes_precedence(known, path):
    of_model = known()
    assert (of_model.source("banking"), of_model.names()) == ("hub://org/bge-lora", ("banking", "both"))
    for source in ("/first", "/second"):
        add(path, "new", source)
        assert of_model.source("new") == source
    add(path, "both", "/added")
    assert (of_model.source("both"), of_model.names()) == ("/of/the/file", ("banking", "both", "new"))
    remove(path, "new")
    remove(path, "both")
    with pytest.raises(InputError):
        of_model.source("new")


def test_an_adapter_source_is_kept_while_a_name_refers_to_it(known, path):
    of_model = known()
    add(path, "new", "/x")
    assert [of_model.holds(each) for each in ("/x", "/of/the/file", "/y", "hub://org/other")] == [
        True,
        True,
        False,
        False,
    ]
    remove(path, "new")
    assert not of_model.holds("/x")
    assert known(allow_client_lora=True).holds("hub://org/other")


def test_an_unchanged_list_of_adapters_is_not_read_again(known, path, monkeypatch):
    num_read = []
    monkeypatch.setattr(known_loras, "read", lambda path: num_read.append(path) or read(path))
    of_model = known()
    add(path, "new", "/x")
    num_read.clear()
    for _ in range(3):
        of_model.source("new")
    assert num_read == [path]


def test_an_unknown_adapter_gets_the_known_ones_and_a_remedy(known, path):
    add(path, "added", "/x")
    with pytest.raises(InputError) as caught:
        known().source("bankng")
    assert str(caught.value) == (
        "parameter lora: org/m has no adapter 'bankng'; give one of added, banking, both; "
        "add one with sie-triton lora add org/m NAME SOURCE"
    )


def test_any_adapter_of_a_model_without_adapters_is_refused():
    with pytest.raises(InputError) as caught:
        KnownLoras(spec()).source("x")
    assert str(caught.value) == "parameter lora: m has no adapter 'x'; it has none"


def test_error_messages_about_adapters_are_short_and_printable():
    many = {f"adapter-{i:04}": "/x" for i in range(500)}
    with pytest.raises(InputError) as caught:
        KnownLoras(spec(loras=many)).source("\x1b[2J\n" + "x" * 150)
    assert str(caught.value).isprintable()
    assert "adapter-0019, … (500 in all)" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_clients_may_name_hub_ids_only_if_the_operator_allows_it(known):
    for name in ("org/x", "org/x@v1"):
        with pytest.raises(InputError, match="requests may name ids on the hub only if SIE_ALLOW_CLIENT_LORA is true"):
            known().source(name)
        assert known(allow_client_lora=True).source(name) == f"hub://{name}"
    assert known(allow_client_lora=True).source("banking") == "hub://org/bge-lora"


@pytest.mark.parametrize(
    "name",
    ["/etc", "/etc/passwd", "./x", "../x", "~/x", "org/../x", "a/b/c", "hub://org/x", "package://a/b", "x", "a/b\n"],
)
def test_a_client_never_names_a_place_of_the_server(known, name):
    with pytest.raises(InputError):
        known(allow_client_lora=True).source(name)


def test_the_adapter_list_is_private_and_deleted_when_empty(path):
    assert (add(path, "a", "/x"), add(path, "a", "/y"), add(path, "b", "/z")) == (False, True, False)
    assert read(path) == {"a": "/y", "b": "/z"}
    assert [each.name for each in path.parent.iterdir()] == ["org__m.json"]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (remove(path, "c"), remove(path, "a"), remove(path, "b")) == (False, True, True)
    assert list(path.parent.iterdir()) == []
    path.write_text("{")
    assert read(path) == {}


# --- the request parameter


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_a_family_that_takes_adapters_has_the_parameter(verb):
    model = model_of(spec(family="bge_m3", tasks=("encode", "score")))
    assert "lora" not in VERBS[verb].all_parameters(replace(model, takes_loras=False))
    lora = VERBS[verb].all_parameters(replace(model, takes_loras=True))["lora"]
    assert (lora.check("x" * 200), lora.check("")) == ("x" * 200, "")
    for wrong in ("x" * 201, 1, True):
        with pytest.raises(InputError, match=r"parameter lora: .* give a string of at most 200 characters"):
            lora.check(wrong)


@pytest.mark.parametrize("taken", [True, False])
def test_the_family_says_whether_a_model_takes_adapters(monkeypatch, taken):
    set_takes_loras(monkeypatch, "sentence_transformer", taken)
    assert model_of(spec()).takes_loras is taken


@pytest.fixture
def preprocess(tmp_path, minilm_directory, monkeypatch):
    """Preprocessing stage of a model whose profile `bank` has an adapter."""
    set_takes_loras(monkeypatch, "sentence_transformer", True)
    profiles = Profile(), Profile("bank", {"lora": "banking"})
    runtime = Runtime(loras_dir=str(tmp_path / "loras"))
    of = spec(model="org/m", weights=str(minilm_directory), loras=FILE, profiles=profiles, runtime=runtime)
    stage = Preprocess(of, StatusWriter(tmp_path, "org__m", "preprocess", 0))
    yield stage
    stage.close()


def lora_of(answer):
    return answer["context"].options.get("lora") if isinstance(answer, dict) else answer


def test_the_adapter_travels_with_the_request(preprocess, path):
    given = [
        {},
        {"lora": "both"},
        {"profile": "bank"},
        {"profile": "bank", "lora": ""},
        {"profile": "bank", "lora": "both"},
    ]
    answers = run(preprocess, [asked("encode", each, text=["hi"]) for each in given])
    assert [lora_of(answer) for answer in answers] == [None, "both", "banking", "", "both"]


def test_unknown_adapter_is_refused_until_added(preprocess, path):
    requests = [asked("encode", {"lora": name}, text=["hi"]) for name in ("new", "banking")]
    refused, good = run(preprocess, requests)
    assert isinstance(refused, InputError)
    assert "org/m has no adapter 'new'; give one of banking, both" in str(refused)
    np.testing.assert_array_equal(good["lengths"], [3])
    add(path, "new", "/x")
    (answer,) = run(preprocess, [asked("encode", {"lora": "new"}, text=["hi"])])
    assert lora_of(answer) == "new"
