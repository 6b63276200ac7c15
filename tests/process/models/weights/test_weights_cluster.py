"""The cluster cache on a real S3 server: cold nodes without a hub, resumed and verified downloads, faults."""

import hashlib
import json
from pathlib import Path

import pytest
from huggingface_hub import constants

from sie_triton.contract.spec import Runtime
from sie_triton.errors import LoadError
from sie_triton.models.weights import loadable
from sie_triton.models.weights.cluster import Cluster, Manifest
from sie_triton.models.weights.limits import WeightLimits
from sie_triton.models.weights.object_store import StoreError
from tests.support.hub import BIG, MODEL, contents, load
from tests.support.object_store import Store
from tests.support.stages import spec

EXPECTED = {name: MODEL[name] for name in MODEL if name.endswith(("json", "safetensors"))}
BIG_SHA256 = hashlib.sha256(BIG).hexdigest()


def fetch(tmp_path: Path, store: Store, reference: str = "org/name", allow_hub: bool = True, **given) -> Path:
    runtime = Runtime(hf_fallback=allow_hub, cluster_cache=store.url)
    return loadable(spec(weights=f"hub://{reference}", runtime=runtime), (), cache=tmp_path, **given)


@pytest.fixture
def store(hub, s3, tmp_path, monkeypatch) -> Store:
    """A cluster cache with org/name; the local cache is empty again, and the hub has not been asked."""
    commit = hub.put("org/name", MODEL)
    Cluster(s3.url).push("org/name", commit, load(tmp_path), ["main"], lambda _: None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cold"))
    hub.asked.clear()
    s3.asked.clear()
    return s3


def test_a_cold_node_is_filled_without_a_hub(hub, store, tmp_path):
    said: list[str] = []
    directory = fetch(tmp_path, store, allow_hub=False, report_progress=said.append)
    assert contents(directory) == EXPECTED
    assert hub.asked == []
    assert store.sent == sum(map(len, EXPECTED.values()))
    assert said
    assert all(line.startswith("fetching org/name from the cluster cache") for line in said)
    # The local cache is the same as after a download from the hub.
    blobs = tmp_path / "cold" / "models--org--name" / "blobs"
    assert sorted(map(str, blobs.iterdir())) == sorted(
        str(blobs / each.name) for each in (tmp_path / "cache" / "models--org--name" / "blobs").iterdir()
    )
    store.asked.clear()
    assert fetch(tmp_path, store, f"org/name@{directory.name}", allow_hub=False) == directory
    assert store.asked == [], "a commit that is on disk needs no question"


def test_the_layout_is_the_documented_one(store):
    commit = store.read("refs/main").decode()
    manifest = json.loads(store.read("manifests"))
    assert store.name("manifests") == f"models--org--name/manifests/{commit}.json"
    assert {file["name"]: file["size"] for file in manifest["files"]} == {n: len(EXPECTED[n]) for n in EXPECTED}
    for file in manifest["files"]:
        assert store.read(f"models--org--name/blobs/{file['sha256']}") == EXPECTED[file["name"]]


def test_an_interrupted_download_resumes(store, tmp_path):
    partial = tmp_path / "cold" / "models--org--name" / "blobs" / f"{BIG_SHA256}.sie-partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(BIG[:1000])
    assert contents(fetch(tmp_path, store, allow_hub=False)) == EXPECTED
    assert [each.range for each in store.asked if BIG_SHA256 in each.path] == [f"bytes=1000-{len(BIG) - 1}"]
    assert not list((tmp_path / "cold").rglob("*.sie-partial"))


def test_offline_the_cluster_cache_is_used(hub, store, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert contents(fetch(tmp_path, store)) == EXPECTED
    assert hub.asked == []


def test_a_model_that_the_cluster_cache_lacks_comes_from_the_hub(hub, store, tmp_path):
    hub.put("org/other", MODEL)
    assert contents(fetch(tmp_path, store, "org/other")) == EXPECTED
    with pytest.raises(LoadError, match=r"org/more is neither in the local cache nor in s3://weights/cache"):
        fetch(tmp_path, store, "org/more", allow_hub=False)


def test_half_an_upload_is_never_used(hub, s3, tmp_path, monkeypatch):
    commit = hub.put("org/name", MODEL)
    directory = load(tmp_path)

    def stop(num_bytes: int) -> None:
        if num_bytes >= 1 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cluster(s3.url).push("org/name", commit, directory, ["main"], stop)
    assert any("/blobs/" in name for name in s3.names())
    assert Cluster(s3.url).find("org/name", "main") is None
    assert Cluster(s3.url).find("org/name", commit) is None


@pytest.mark.parametrize("fault", ["away", "blob missing", "blob damaged"])
def test_the_hub_takes_over_from_a_faulty_cluster_cache(hub, store, tmp_path, monkeypatch, fault, caplog):
    if fault == "blob damaged":
        store.write(store.name(BIG_SHA256), b"x" + BIG[1:])
    elif fault == "blob missing":
        from obstore import delete

        delete(store.client(), store.name(BIG_SHA256))
    store.away = fault == "away"
    with pytest.raises(LoadError) as told:
        fetch(tmp_path, store, allow_hub=False)
    assert not list((tmp_path / "cold").rglob("model.safetensors"))
    assert "of-the-test" not in str(told.value)
    assert len(str(told.value).splitlines()) == 1
    assert contents(fetch(tmp_path, store)) == EXPECTED
    assert hub.sent[BIG_SHA256] >= len(BIG)
    assert "cluster cache" in caplog.text or "fetching model.safetensors from the hub" in caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "../../elsewhere.json"}, "must be a path inside"),
        ({"name": "/etc/passwd"}, "must be a path inside"),
        ({"size": -1}, "size must be from 0"),
        ({"size": 1 << 50}, "size must be from 0"),
        ({"sha256": "../x"}, "sha256 must be 64"),
        ({"etag": "../x"}, "etag must be sha256"),
    ],
)
def test_a_hostile_manifest_is_refused(hub, store, tmp_path, changes, said, caplog):
    manifest = json.loads(store.read("manifests"))
    manifest["files"][0] |= changes
    store.write(store.name("manifests"), json.dumps(manifest).encode())
    with pytest.raises(LoadError):
        fetch(tmp_path, store, allow_hub=False)
    assert said in caplog.text
    assert not list(tmp_path.rglob("elsewhere.json"))


def test_a_manifest_is_bounded(store):
    commit = store.read("refs/main").decode()
    file = json.loads(store.read("manifests"))["files"][0]
    limits = WeightLimits(max_manifest_files=2, max_manifest_bytes=10)
    with pytest.raises(ValueError, match="nested too deeply"):
        Manifest.read(b"[" * 100_000, "org/name", commit)
    many = {"version": 1, "commit": commit, "files": [file] * 3}
    with pytest.raises(ValueError, match="1 to 2 files"):
        Manifest.read(json.dumps(many).encode(), "org/name", commit, limits)
    with pytest.raises(StoreError, match="at most 10 are allowed"):
        Cluster(store.url, limits).find("org/name", "main")


def test_a_directory_is_a_cluster_cache_too(hub, tmp_path, monkeypatch):
    commit = hub.put("org/name", MODEL)
    url = f"file://{tmp_path}/shared"
    Cluster(url).push("org/name", commit, load(tmp_path), ["main"], lambda _: None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cold"))
    hub.asked.clear()
    runtime = Runtime(hf_fallback=False, cluster_cache=url)
    assert contents(loadable(spec(weights="hub://org/name", runtime=runtime), (), cache=tmp_path)) == EXPECTED
    assert hub.asked == []


def test_a_commit_that_another_program_has_fetched_is_used_without_a_question(hub, tmp_path):
    commit = hub.put("org/name", MODEL)
    directory = load(tmp_path)
    for path in (tmp_path / "cache").rglob("*.files"):
        path.unlink()
    hub.asked.clear()
    assert load(tmp_path, f"org/name@{commit}") == directory
    assert hub.asked == []
    (directory / "model.safetensors").unlink()
    assert contents(load(tmp_path, f"org/name@{commit}")) == EXPECTED
    assert hub.num_asked("/api/") == 1
