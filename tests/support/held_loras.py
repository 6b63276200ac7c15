"""A worker in memory, and what surrounds the LoRA adapters that it holds."""

import threading
from pathlib import Path
from types import SimpleNamespace

from sie_triton.errors import LoadError
from sie_triton.models.weights.uses import if_unused
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.stages.lora_cache import LoraCache
from sie_triton.pipeline.worker.handle import WorkerDied
from sie_triton.pipeline.worker.messages import Done

LIMIT = 3
SIZE = 1000


class FakeWorker:
    """Worker that holds names of adapters; loading a name that begins with `bad` fails."""

    loaded = SimpleNamespace(weights_bytes=5)

    def __init__(self) -> None:
        self.held: list[str] = []
        self.orders: list[str] = []
        self.in_use: dict[str, int] = {}
        self.may_add = threading.Event()
        self.may_add.set()
        self.is_dead = False
        self.once_refused: set[str] = set()

    def add_lora(self, name, directory):
        assert directory == Path("/") / name
        assert self.may_add.wait(10)
        if self.is_dead:
            raise WorkerDied("dead")
        self.orders.append(f"+{name}")
        if name.startswith("bad") or name in self.once_refused:
            self.once_refused.discard(name)
            raise LoadError("no such layer", "unsupported")
        self.held.append(name)
        assert len(self.held) <= LIMIT
        return Done(SIZE, 7)

    def kill(self):
        self.is_dead = True

    def remove_lora(self, name):
        assert not self.in_use.get(name), "Triton's clients get an error"
        self.orders.append(f"-{name}")
        self.held.remove(name)


class Model:
    """Environment of a stage's LoRA adapters: the jobs submitted to the scheduler."""

    def __init__(self, path: Path, limits: StageLimits = StageLimits()) -> None:
        self.submitted: list[SimpleNamespace] = []
        self.status = SimpleNamespace(record={}, loras_path=path)
        self.came = threading.Condition()
        self.removed: set[str] = set()
        self.loras = LoraCache(
            LIMIT,
            self.fetch,
            self.submit,
            self.status,
            lambda name: name not in self.removed,
            limits,
        )
        self.worker = FakeWorker()
        self.loras.restore(self.worker)

    def fetch(self, source, uses):
        uses.hold(self.record_of(source))
        return Path("/") / source

    def record_of(self, source):
        """Record of use of an adapter's files."""
        return self.status.loras_path.with_name(f"{source}.used")

    def is_in_use(self, source):
        with if_unused(self.record_of(source)) as unused:
            return not unused

    def submit(self, jobs):
        with self.came:
            self.submitted += jobs
            self.came.notify_all()

    def job(self, lora):
        return Job(lora, self)

    def ask(self, lora):
        """Submit a request for an adapter as the stage does."""
        job = self.job(lora)
        is_ready = self.loras.take(job)
        job.request.is_deferred = True
        (self.submit([job]) if is_ready else self.loras.wait(job))
        return job

    def wait_for(self, condition):
        with self.came:
            assert self.came.wait_for(condition, 10)

    def answered(self, job):
        job.request.is_open = False

    def use(self, lora):
        """Run one request to completion."""
        job = self.ask(lora)
        self.wait_for(lambda: job in self.submitted)
        self.answered(job)


class Asked:
    """Stands for OpenRequest; `told` is its answer."""

    def __init__(self, model):
        self._came = model.came
        self.told = None
        self.is_open, self.is_deferred = True, False

    def answer(self, answer):
        with self._came:
            self.told, self.is_open = answer, False
            self._came.notify_all()


class Job:
    def __init__(self, lora, model):
        self.lora = self.lora_name = lora
        self.request = Asked(model)
        self.is_done = False
