"""A disk that is too full: the least recently used weights leave, and nothing that is in use or not ours."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from threading import Event

import pytest
from huggingface_hub import constants

from sie_triton.contract.spec import Runtime
from sie_triton.models.weights import loadable
from sie_triton.models.weights.disk import DiskCache, made_directories
from sie_triton.models.weights.entries import entries
from sie_triton.models.weights.limits import LIMITS
from sie_triton.models.weights.uses import Uses, last_use, record_beside
from sie_triton.pipeline.stages.loader import Loader
from sie_triton.records.status import StatusWriter
from tests.support.hub import BIG, MODEL, load
from tests.support.stages import spec

NOW = 2_000_000_000.0
HOUR = 3600.0


@dataclass
class Disk:
    """A disk of `size` bytes that holds what is below `directory`, and nothing else."""

    directory: Path
    size: int = 10_000_000
    made: Mapping[str, Path] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return sum(path.lstat().st_size for path in self.directory.rglob("*") if not path.is_dir())

    @property
    def free(self) -> int:
        return self.size - self.used

    def cache(self, percent: float | None = 50) -> DiskCache:
        return DiskCache(self.directory / "cache", self.directory / "data", percent, lambda _: self, lambda: NOW)


@pytest.fixture
def disk(hub, tmp_path, monkeypatch) -> Disk:
    """A disk of 10 MB with three models of 2 MB each, used 3, 2 and 1 hours ago."""
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "disk" / "cache"))
    for age, name in enumerate(("org/c", "org/b", "org/a"), -3):
        hub.put(name, {**MODEL, "model.safetensors": BIG[:-1] + name[-1:].encode()})
        load(tmp_path, name)
        set_use(tmp_path / "disk" / "cache", name, NOW + age * HOUR)
    return Disk(tmp_path / "disk")


def record(cache: Path, name: str) -> Path:
    (found,) = (cache / f"models--{name.replace('/', '--')}").rglob("*.used")
    return found


def set_use(cache: Path, name: str, at_s: float) -> None:
    os.utime(record(cache, name), (at_s, at_s))


def on_disk(disk: Disk) -> list[str]:
    return [entry.repo for entry in entries(disk.directory / "cache")]


def test_the_least_recently_used_model_leaves(disk):
    (removed,) = disk.cache(60).make_room()
    assert removed.startswith("org/c@")
    assert on_disk(disk) == ["org/a", "org/b"]
    assert disk.cache(60).make_room() == []


def test_room_is_made_for_what_comes(disk):
    assert [name[:5] for name in disk.cache(70).make_room(4_000_000)] == ["org/c", "org/b"]


def test_what_is_in_use_stays(disk):
    with Uses() as uses:
        uses.hold(record(disk.directory / "cache", "org/c"))
        set_use(disk.directory / "cache", "org/c", NOW - 9 * HOUR)
        assert [name[:5] for name in disk.cache(60).make_room()] == ["org/b"]
    assert on_disk(disk) == ["org/a", "org/c"]


def test_a_lora_adapter_in_memory_stays(hub, disk, tmp_path):
    hub.put("org/lora", {"adapter_config.json": b"{}", "adapter_model.safetensors": BIG})
    loader = Loader(spec(runtime=Runtime()), "cpu", StatusWriter(tmp_path, "m", "inference", 0), Event(), print)
    with Uses() as uses:
        loader.fetch_lora("hub://org/lora", uses)
        set_use(disk.directory / "cache", "org/lora", NOW - 9 * HOUR)
        disk.cache(1).make_room()
        assert on_disk(disk) == ["org/lora"]
    disk.cache(1).make_room()
    assert on_disk(disk) == []


def test_what_was_used_just_now_stays(disk):
    set_use(disk.directory / "cache", "org/b", NOW - LIMITS.recent_s / 2)
    assert [name[:5] for name in disk.cache(1).make_room()] == ["org/c", "org/a"]
    assert on_disk(disk) == ["org/b"]


def test_what_another_program_has_fetched_stays(disk):
    record(disk.directory / "cache", "org/c").unlink()
    assert [name[:5] for name in disk.cache(1).make_room()] == ["org/b", "org/a"]
    assert on_disk(disk) == ["org/c"]


def test_without_a_limit_nothing_leaves(disk):
    assert disk.cache(None).make_room(10**12) == []
    assert DiskCache.of(Runtime(disk_cache_enabled=False), disk.directory).threshold_percent is None
    assert DiskCache.of(Runtime(), disk.directory).threshold_percent == 85


def test_a_partial_download_of_a_killed_process_leaves(disk):
    home = disk.directory / "cache" / "models--org--d"
    (home / "blobs").mkdir(parents=True)
    (home / "blobs" / f"{'a' * 64}.sie-partial").write_bytes(BIG)
    (home / ".sie-triton").mkdir()
    (home / ".sie-triton" / f"{'b' * 40}.used").touch()
    set_use(disk.directory / "cache", "org/d", NOW - 9 * HOUR)
    assert disk.cache(80).make_room() == [f"org/d@{'b' * 40}"]
    assert not home.exists()


def test_graphs_leave_too(disk):
    (disk.directory / "data" / "graphs" / "old").mkdir(parents=True)
    (disk.directory / "data" / "graphs" / "old" / "graph.onnx").write_bytes(BIG)
    os.utime(disk.directory / "data" / "graphs" / "old", (1, 1))
    with Uses() as uses:
        uses.hold(record_beside(disk.directory / "data" / "graphs" / "old"))
        os.utime(record_beside(disk.directory / "data" / "graphs" / "old"), (1, 1))
        assert [name[:5] for name in disk.cache(70).make_room()] == ["org/c"]
    assert disk.cache(50).make_room() == ["graphs/old"]
    assert list((disk.directory / "data" / "graphs").iterdir()) == []


def test_converted_pickles_leave_too(hub, disk, tmp_path):
    import torch

    file = BytesIO()
    torch.save({"a": torch.zeros(500_000)}, file)
    hub.put("org/p", {"config.json": b"{}", "pytorch_model.bin": file.getvalue()})
    wanted = spec(weights="hub://org/p", allow_pickle="tensors", runtime=Runtime())
    tree = loadable(wanted, (), cache=disk.directory / "data")
    tree_record = tree.with_name(f"{tree.name}.used")
    assert last_use(tree_record) is not None
    (conversion,) = made_directories(tree.parent)
    with Uses() as uses:
        uses.hold(tree_record)
        assert not conversion.remove()
        assert (tree / "model.safetensors").stat().st_size > 2_000_000
    os.utime(tree_record, (1, 1))
    set_use(disk.directory / "cache", "org/p", NOW)
    assert disk.cache(85).make_room() == [f"converted/{tree.name}"]
    assert not list((disk.directory / "data" / "converted").rglob("*.safetensors"))
    again = loadable(wanted, (), cache=disk.directory / "data")
    assert again == tree
    assert (again / "model.safetensors").stat().st_size > 2_000_000


def test_a_download_makes_room(hub, disk, tmp_path, monkeypatch):
    """Before it, for what comes; the new model and the one in use stay."""
    hub.put("org/new", {**MODEL, "model.safetensors": BIG[::-1]})
    monkeypatch.setattr("sie_triton.models.weights.disk.time", lambda: NOW)
    monkeypatch.setattr(DiskCache, "of", lambda runtime, data: disk.cache(70))
    with Uses() as uses:
        uses.hold(record(disk.directory / "cache", "org/c"))
        set_use(disk.directory / "cache", "org/c", NOW - 9 * HOUR)
        load(tmp_path, "org/new")
    assert on_disk(disk) == ["org/a", "org/c", "org/new"]


def test_a_load_is_a_use(disk, tmp_path):
    before = last_use(record(disk.directory / "cache", "org/c"))
    load(tmp_path, "org/c")
    assert last_use(record(disk.directory / "cache", "org/c")) != before
