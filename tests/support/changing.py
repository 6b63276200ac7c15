"""Fake Triton and repository for the controller's changes."""

import shutil
from concurrent.futures import wait

from tritonclient.utils import InferenceServerException

from sie_triton.controller import changes as module
from sie_triton.controller import repository as wanted_module
from sie_triton.controller.changes import Changes
from sie_triton.controller.model_states import Processes
from sie_triton.controller.swaps import Swaps
from sie_triton.records.change import ChangeOutcome
from sie_triton.records.serving_file import Serving

STAGES = ("preprocess", "inference", "postprocess")


class Triton:
    """Fake of Triton's model control: an ensemble whose steps are not loaded goes out of service."""

    def __init__(self, repository) -> None:
        self.repository = repository
        self.states: dict[str, str] = {}
        self.behind: dict[str, tuple[str, int]] = {}
        self.broken: set[str] = set()
        self.done: list[str] = []
        self.alive = True

    def answers(self):
        return self.alive

    def index(self):
        return {path.name: self.states.get(path.name, "") for path in self.repository.iterdir()}

    def load(self, name):
        config = self.repository / name / "config.pbtxt"
        if not config.exists() or name in self.broken:
            raise InferenceServerException("no such thing")
        text = config.read_text()
        if text:
            self._load_ensemble(name, text.split('"')[1].removesuffix("-preprocess"), config.stat().st_mtime_ns)
        self.states[name] = "READY"
        self.done.append(f"load {name}")

    def _load_ensemble(self, name, steps, mtime):
        if any(self.states.get(f"{steps}-{stage}") != "READY" for stage in STAGES):
            self.unload(name)
            raise InferenceServerException(f"{name} depends on what is not there")
        if name not in self.behind or mtime > self.behind[name][1]:
            self.behind[name] = steps, mtime

    def unload(self, name):
        self.behind.pop(name, None)
        if self.states.get(name):
            self.states[name] = "unloaded"
            self.done.append(f"unload {name}")

    def steps_behind(self, ensemble):
        return self.behind.get(ensemble, ("", 0))[0]

    def swap(self, name, *, resident=False):
        self.done.append(f"swap {name}")


class World:
    """A repository, the Triton that serves it, and the controller's changes; `open` are requests in progress."""

    def __init__(self, data_dir, monkeypatch) -> None:
        Serving((), {"data_dir": str(data_dir)}, str(data_dir)).write()
        self.repository = data_dir / "model_repository"
        self.repository.mkdir()
        self.triton = Triton(self.repository)
        self.open: dict[str, int] = {}
        self.now = 1000.0
        self.outcome = ChangeOutcome()
        self.data_dir = data_dir
        for each in (module, wanted_module):
            monkeypatch.setattr(each, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "refresh", self._refresh)
        self.render = self.once = lambda: None
        self.num_looks = 0
        self.new_controller()

    def new_controller(self):
        self.swaps = Swaps(self.triton)
        self.changes = Changes(self.data_dir, self.triton, self.swaps)

    def write(self, steps, *ensembles):
        """Write steps, and ensembles that use them."""
        names = [(f"{steps}-{stage}", "") for stage in STAGES]
        for name, text in names + [(ensemble, f'model_name: "{steps}-preprocess"') for ensemble in ensembles]:
            (self.repository / name).mkdir(exist_ok=True)
            (self.repository / name / "config.pbtxt").write_text(text)

    def remove(self, *ensembles):
        for name in ensembles:
            shutil.rmtree(self.repository / name)

    def start_triton(self):
        """Load everything in the repository into Triton."""
        for name in sorted(self.triton.index(), key=lambda name: not name.endswith(STAGES)):
            self.triton.load(name)
        self.triton.done.clear()

    def serve(self, steps, *ensembles):
        self.write(steps, *ensembles)
        self.start_triton()
        self.tick()

    def stages(self):
        """Processes of the steps that Triton has loaded."""
        loaded = {n.rpartition("-")[0] for n, s in self.triton.states.items() if s == "READY" and "-p" in n}
        return {
            stage: {steps: Processes([{"num_open": self.open.get(f"{steps}-{stage}", 0)}], []) for steps in loaded}
            for stage in STAGES
        }

    def tick(self, seconds=0.0):
        """Advance the clock, run one round of the controller, and wait for the jobs that it starts."""
        self.now += seconds
        self.changes.tick(self.stages())
        jobs = [self.changes._under_way, *self.changes._unloads.values()]
        assert not wait([job for job in jobs if job], timeout=10).not_done

    def change(self, render=lambda: None):
        """Request the addition of a model file, as a client would."""
        self.once = render
        return self.changes.add(b"")

    def done(self):
        done, self.triton.done[:] = list(self.triton.done), []
        return done

    def _refresh(self, data_dir, **change):
        self.num_looks += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        self.once()
        self.once = lambda: None
        self.render()
        return self.outcome
