"""The controller's seam to Triton, in memory, and stages that are nothing but their record."""

import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import wait
from time import monotonic_ns

from tritonclient.utils import InferenceServerException

from sie_triton.controller.token import TOKEN_FILE
from sie_triton.records.status import StatusWriter, status_path
from sie_triton.system.processes.pids import ProcessId


class FakeControl:
    """Fake of the controller's seam to Triton. A swap calls `then`, or raises `failure`, if set."""

    def __init__(self) -> None:
        self.swapped: list[tuple[str, bool]] = []
        self.loaded: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.failure: Exception | None = None
        self.then = lambda: None
        self.alive = True

    def swap(self, name, *, resident=False):
        self.swapped.append((name, resident))
        self.may_end.wait(5)
        if self.failure is not None:
            raise self.failure
        self.then()

    def answers(self, seconds=1.0):
        return self.alive

    def knows(self, model):
        if not self.alive:
            raise InferenceServerException("connection refused")
        return model == "unloaded"

    def load_all_of(self, model):
        self.loaded.append(model)


def stage(controller, name, pid=None, kind="inference", generation=0, **fields):
    """Record of a stage; if it waits for room, it waits from now on."""
    directory = controller._directory
    writer = StatusWriter(directory, name, kind, generation)
    for field, value in {"wanted_since_ns": monotonic_ns(), **fields}.items():
        writer.record[field] = value
    if "worker_pid" in fields:
        writer.has_worker(ProcessId.of(fields["worker_pid"]))
    if pid:
        writer.record["pid"], writer.record["started"] = ProcessId.of(pid)
        writer._path = writer._path.rename(status_path(directory, name, kind, pid))
    return writer


def round_of(controller):
    """Run a round, and wait for what it has started."""
    controller.tick()
    assert not wait(controller.swaps._under_way.values(), timeout=10).not_done


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def status_of(settings, path, method="GET", body=None, **headers) -> tuple[int, str]:
    request = urllib.request.Request(url(settings, path), method=method, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def url(settings, path):
    return f"http://127.0.0.1:{settings.controller_port}{path}"


def admin(settings) -> dict[str, str]:
    return {"Authorization": f"Bearer {(settings.data_dir / TOKEN_FILE).read_text()}"}
