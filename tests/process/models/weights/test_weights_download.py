"""Downloads from the model hub: a complete directory despite interruptions, within bounds."""

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from sie_triton.contract.spec import Runtime
from sie_triton.errors import LoadError
from sie_triton.models.weights import download, locate
from sie_triton.models.weights.limits import LIMITS
from sie_triton.models.weights.locate import SMALL_FILES
from sie_triton.models.weights.uses import Uses
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.stages.loader import Loader
from sie_triton.records.status import StatusWriter
from tests.support.hub import BIG, MODEL, contents, load
from tests.support.stages import spec


def partial(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "models--org--name" / "blobs").glob("*.sie-partial")
    return path


def test_a_download_fills_the_hub_cache(hub, tmp_path):
    commit = hub.put("org/name", MODEL)
    directory = load(tmp_path)
    assert directory.name == commit
    assert contents(directory) == {name: MODEL[name] for name in MODEL if name.endswith(("json", "safetensors"))}
    assert (tmp_path / "cache" / "models--org--name" / "refs" / "main").read_text() == commit
    # Other readers of the cache find it.
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    assert snapshot_download("org/name", local_files_only=True) == str(directory)
    assert try_to_load_from_cache("org/name", "model.safetensors") == str(directory / "model.safetensors")
    hub.asked.clear()
    assert load(tmp_path) == directory
    assert [each.path for each in hub.asked] == ["/api/models/org/name"]


def test_small_files_come_alone(hub, tmp_path):
    hub.put("org/name", MODEL)
    directory = locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES)
    assert contents(directory).keys() == {"config.json", "tokenizer.json"}
    assert hub.sent == {}


def test_a_token_does_not_leave_the_hub(hub, tmp_path, monkeypatch):
    hub.put("org/name", MODEL)
    hub.token = "hf_mine"
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    load(tmp_path)
    assert {each.token for each in hub.asked if "blobs" not in each.path} == {"Bearer hf_mine"}
    assert {each.token for each in hub.asked if "blobs" in each.path} == {None}


def test_progress_is_reported(hub, tmp_path, monkeypatch):
    hub.put("org/name", MODEL)
    hub.held_after = 1 << 20
    said: list[str] = []

    def report_progress(line: str) -> None:
        said.append(line)
        if "1 of 2 MB" in line:
            hub.may_send.set()

    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 100)
    load(tmp_path, report_progress=report_progress)
    assert "fetching org/name from the hub: 1 of 2 MB" in said


FETCH = """
from sie_triton.models.weights import locate
locate("hub://org/name", allow_hub=True)
"""


def test_a_download_resumes_after_its_process_is_killed(hub, tmp_path):
    hub.put("org/name", MODEL)
    hub.held_after = 1 << 20
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}
    process = subprocess.Popen([sys.executable, "-c", FETCH], env=environment)
    digest = hashlib.sha256(BIG).hexdigest()
    wait_for(lambda: hub.sent.get(digest, 0) >= 1 << 20 and partial(tmp_path).stat().st_size >= 1 << 20)
    process.send_signal(signal.SIGKILL)
    process.wait()
    hub.may_send.set()
    assert (load(tmp_path) / "model.safetensors").read_bytes() == BIG
    first, second = (each.first for each in hub.asked if "blobs" in each.path)
    assert (first, second) == (0, 1 << 20)


def test_a_broken_connection_is_resumed(hub, tmp_path):
    hub.put("org/name", MODEL)
    hub.cut_after = 1 << 20
    assert (load(tmp_path) / "model.safetensors").read_bytes() == BIG
    assert sum(hub.sent.values()) == len(BIG)


def put_partial(tmp_path: Path, content: bytes) -> None:
    blobs = tmp_path / "cache" / "models--org--name" / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / f"{hashlib.sha256(BIG).hexdigest()}.sie-partial").write_bytes(content)


def test_a_full_response_to_a_range_request_restarts_the_file(hub, tmp_path):
    def stop(_: str) -> None:
        assert hub.num_asked("blobs") < 5, "fetched again and again"

    hub.put("org/name", MODEL)
    hub.ignores_ranges = True
    put_partial(tmp_path, BIG[: 1 << 20])
    assert (load(tmp_path, report_progress=stop) / "model.safetensors").read_bytes() == BIG
    assert [each.first for each in hub.asked if "blobs" in each.path] == [1 << 20]


@pytest.mark.parametrize(("num_free", "fits"), [(99, False), (100, True)])  # plus what every fetch leaves free
def test_a_resumed_file_needs_room_for_the_rest_only(hub, tmp_path, monkeypatch, num_free, fits):
    hub.put("org/name", {name: MODEL[name] for name in ("config.json", "model.safetensors")})
    locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES)
    put_partial(tmp_path, BIG[:-100])
    monkeypatch.setattr(
        download.shutil, "disk_usage", lambda _: SimpleNamespace(used=0, free=LIMITS.spare_disk_bytes + num_free)
    )
    if fits:
        assert (load(tmp_path) / "model.safetensors").read_bytes() == BIG
    else:
        with pytest.raises(LoadError, match=r"needs 0 MB more in .* where 0 MB are free") as told:
            load(tmp_path)
        assert (told.value.reason, hub.sent) == ("disk full", {})


def test_damaged_parts_are_fetched_again(hub, tmp_path):
    """The partial file has the full size, but not the hash in its name."""
    hub.put("org/name", MODEL)
    put_partial(tmp_path, b"x" + BIG[1:])
    with pytest.raises(LoadError, match="arrived damaged") as told:
        load(tmp_path)
    assert not told.value.is_permanent
    assert (load(tmp_path) / "model.safetensors").read_bytes() == BIG


def test_concurrent_downloads_fetch_each_byte_once(hub, tmp_path):
    hub.put("org/name", MODEL)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(load(tmp_path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 3
    assert sum(hub.sent.values()) == len(BIG)


def test_a_download_goes_on_where_an_interrupted_one_ended(hub, tmp_path):
    hub.put("org/name", MODEL)
    blobs = tmp_path / "cache" / "models--org--name" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / f"{hashlib.sha256(BIG).hexdigest()}.sie-partial").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: load(tmp_path))
        thread.start()
        wait_for(lambda: hub.num_asked("model.safetensors", "HEAD"))
        time.sleep(0.1)
        other.write(BIG[:-10])
    thread.join()
    assert sum(hub.sent.values()) == 10


@pytest.mark.timeout(45)  # the hub holds back the rest for 60 s
def test_stopping_a_download_does_not_wait_for_the_hub(hub, tmp_path, monkeypatch):
    hub.put("org/name", MODEL)
    hub.held_after = 1 << 20
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 100)

    def stop(line: str) -> None:
        if "1 of 2 MB" in line:
            raise LoadError("this process is about to end")

    with pytest.raises(LoadError, match="about to end"):
        load(tmp_path, report_progress=stop)


def test_a_hub_that_stalls_in_the_middle(hub, tmp_path):
    hub.put("org/name", MODEL)
    hub.held_after = 1 << 20
    with pytest.raises(LoadError, match="takes too long to answer") as told:
        load(tmp_path)
    assert told.value.reason == "network"
    assert hub.num_asked("blobs") == 2 + LIMITS.max_retries, "one brought something, the others nothing"


def test_a_file_larger_than_announced_is_discarded(hub, tmp_path):
    """A hub that sends more does not fill the disk, and is not retried endlessly."""
    hub.put("org/name", MODEL)
    hub.size_said = 1000
    with pytest.raises(LoadError, match=r"model\.safetensors arrived damaged") as told:
        load(tmp_path)
    assert told.value.reason == "network"
    assert partial(tmp_path).stat().st_size == 0
    assert hub.num_asked("blobs") == 1


def test_a_file_of_unknown_size_is_limited(hub, tmp_path, monkeypatch):
    hub.put("org/name", MODEL)
    look_up = download.Transfer.look_up
    monkeypatch.setattr(download.Transfer, "look_up", lambda *given: replace(look_up(*given), size=None))
    with pytest.raises(LoadError, match=r"model\.safetensors arrived damaged"):
        load(tmp_path)
    assert partial(tmp_path).stat().st_size == 0


def test_an_adapter_that_is_too_large_is_not_fetched(hub, tmp_path):
    hub.put("org/lora", {"adapter_config.json": b"{}", "adapter_model.safetensors": BIG, "other.bin": BIG})
    loader = Loader(spec(runtime=Runtime()), "cpu", StatusWriter(tmp_path, "m", "inference", 0), Event(), print)
    loader._limits = StageLimits(lora_bytes=2_000_000)
    with pytest.raises(LoadError, match=r"org/lora has 2 MB to fetch, and 2 MB are allowed; download it") as told:
        loader.fetch_lora("hub://org/lora", Uses())
    assert (told.value.is_permanent, hub.sent) == (True, {})
    loader._limits = StageLimits(lora_bytes=3_000_000)
    fetched = contents(loader.fetch_lora("hub://org/lora", Uses()))
    assert fetched.keys() == {"adapter_config.json", "adapter_model.safetensors"}


def test_a_disk_that_is_full(hub, tmp_path):
    hub.put("org/name", MODEL)
    locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES)
    blobs = tmp_path / "cache" / "models--org--name" / "blobs"
    (blobs / f"{hashlib.sha256(BIG).hexdigest()}.sie-partial").symlink_to("/dev/full")
    with pytest.raises(LoadError, match="cache is full; free up space there") as told:
        load(tmp_path)
    assert told.value.reason == "disk full"


def wait_for(condition: Callable[[], bool]) -> None:
    ended = time.monotonic() + 30
    while time.monotonic() < ended:
        try:
            if condition():
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.02)
    raise AssertionError("it did not come")
