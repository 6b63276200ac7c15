"""Models are added, changed and removed under load: no request fails, and each is answered by one revision."""

import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from sentence_transformers import SentenceTransformer

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.commands import ask
from sie_triton.errors import SIEError
from sie_triton.pipeline.render.refresh import start
from sie_triton.records.serving_file import repository_of
from sie_triton.records.status import RESIDENT, records_of_revisions, worker_of
from sie_triton.server.companions import controller, fork_servers
from sie_triton.server.launch import Server
from sie_triton.system.processes.fork_server import fork_server_ids
from tests.conftest import fresh_settings, tiny_model_file
from tests.residency.conftest import ADMIN_TOKEN, Crowd, wait_for, watching
from tests.support.models import save_bert

TEXT = "whoever asks while a model is being changed gets what it was before or what it is since, and nothing else"
A, B, C, D = (f"test/{name}" for name in "abcd")
BULK = 800


@dataclass
class Variant:
    """A model file's content but for the name, and what it answers to TEXT."""

    directory: Path
    vector: np.ndarray

    def file(self, model: str) -> str:
        return tiny_model_file(model, self.directory, len(self.vector))


@pytest.fixture(scope="module")
def variants(tmp_path_factory, minilm_directory) -> dict[str, Variant]:
    """Another pooling, and other dims."""
    root, made = tmp_path_factory.mktemp("variants"), {}
    for name, options in {"mean": {}, "cls": {"pooling": "cls"}, "dense": {"dense": 32}}.items():
        directory = save_bert(root / name, minilm_directory, **options)
        made[name] = Variant(directory, SentenceTransformer(str(directory), device="cpu").encode(TEXT))
    return made


@dataclass
class Site:
    """A running server, its directory of model files, and what clients of its models saw."""

    crowd: Crowd
    models_dir: Path
    variants: dict[str, Variant]
    seen: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def repository(self) -> Path:
        return repository_of(self.crowd.settings.data_dir)

    def variant_of(self, vector: np.ndarray) -> str:
        same = (
            name
            for name, variant in self.variants.items()
            if vector.shape == variant.vector.shape and np.allclose(vector, variant.vector, atol=2e-3)
        )
        return next(same, "a mixture")

    def answer(self, client: SIEClient, model: str) -> str:
        try:
            return self.variant_of(client.encode(model, TEXT)["dense"])
        except SIEError as exc:
            return f"{type(exc).__name__}: {exc}"

    def ask(self, client: SIEClient, model: str) -> None:
        started = time.monotonic()
        self.seen.append((model, self.answer(client, model)))
        self.seconds.append(time.monotonic() - started)

    @contextmanager
    def asking(self, *models: str) -> Iterator[None]:
        """Run a client for each of these models."""
        stopped = threading.Event()

        def run(model: str) -> None:
            with SIEClient(self.crowd.grpc) as client:
                while not stopped.wait(0.1):
                    self.ask(client, model)

        with ThreadPoolExecutor(len(models)) as pool:
            futures = [pool.submit(run, model) for model in models]
            try:
                yield
            finally:
                stopped.set()
        assert all(future.exception() is None for future in futures)

    def put(self, text: str, method: str = "PUT", path: str = "") -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        url = f"{self.crowd.url}/v1/models{path}"
        request = urllib.request.Request(url, text.encode(), headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read().decode()
        except OSError as exc:  # the controller has ended
            return 0, str(exc)

    def delete(self, model: str) -> tuple[int, str]:
        return self.put("", "DELETE", f"/{triton_name(model)}")

    def write(self, model: str, text: str) -> None:
        (self.models_dir / f"{triton_name(model)}.yaml").write_text(text)

    def wait_for(self, model: str, variant: str) -> None:
        """Wait until a client has received this variant's response."""
        since = len(self.seen)
        wait_for(lambda: (model, variant) in self.seen[since:])

    def problems(self) -> dict[str, str]:
        return ask(self.crowd.settings, "/v1/models")["problems"]

    def copies(self) -> int:
        """Return the largest number of revisions of one model that have weights in memory."""
        directory = self.crowd.settings.status_dir
        found = [records_of_revisions(directory, triton_name(model), "inference") for model in (A, B, C, D)]
        return max(len({n for n, r in each if r["state"] == RESIDENT and worker_of(r).is_alive}) for each in found)

    def is_served(self, ensemble: str) -> bool:
        with triton.InferenceServerClient(self.crowd.grpc) as client:
            return bool(client.is_model_ready(ensemble))

    def steps_of(self, model: str) -> set[str]:
        return {path.name for path in self.repository.glob(f"{triton_name(model)}@*-postprocess")}

    def is_settled(self, *models: str) -> bool:
        """Check that each model has one revision, on disk, in memory, and in Triton, and that nothing else is there."""
        status = self.crowd.settings.status_dir
        steps = {path.name.rpartition("-")[0] for path in self.repository.glob("*-inference")}
        records = {path.name.rpartition("-")[0] for path in status.glob("*-*.status")}
        ensembles = {path.name for path in self.repository.iterdir() if not path.name.endswith(STEPS)}
        names = {triton_name(model) for model in models}
        return (
            steps == records
            and ensembles == names == {each.partition("@")[0] for each in steps}
            and len(steps) == len(names)
        )

    def check(self, *allowed: tuple[str, str]) -> None:
        counts = Counter(self.seen)
        slowest = max(self.seconds)
        print(f"\n{len(self.seen)} requests, slowest {slowest:.1f} s; {dict(counts)}")
        assert not counts.keys() - set(allowed)


STEPS = ("-preprocess", "-inference", "-postprocess")


@contextmanager
def site(root: Path, variants: dict[str, Variant]) -> Iterator[Site]:
    """Serves A, B and C as `mean`."""
    models_dir = root / "models"
    models_dir.mkdir()
    for model in (A, B, C):
        (models_dir / f"{triton_name(model)}.yaml").write_text(variants["mean"].file(model))
    settings = fresh_settings(root, models_dir=models_dir, admin_token=ADMIN_TOKEN, max_sub_batch_cost=512)
    start(settings, [])
    with fork_servers(settings, ()), Server(settings, repository_of(settings.data_dir)) as server:
        server.wait_ready()
        wait_for(lambda: fork_server_ids(settings.status_dir))
        with controller(settings, server.control_token) as companion:
            crowd = Crowd(settings, server, companion)
            wait_for(lambda: crowd.answers() and len(crowd.models()) == 3)
            yield Site(crowd, models_dir, variants)


def test_model_file_changes_fail_no_request(tmp_path, variants):
    mean, cls, dense = variants["mean"], variants["cls"], variants["dense"]
    with site(tmp_path, variants) as here, watching(here.copies, 0.05) as copies:
        with here.asking(A, A, B):
            here.wait_for(A, "mean")
            assert here.put(mean.file(D)) == (200, '{"model":"test/d","done":"added"}')
            with here.asking(D), ThreadPoolExecutor(1) as pool, SIEClient(here.crowd.grpc) as client:
                here.wait_for(D, "mean")
                bulk = pool.submit(client.encode, A, [TEXT] * BULK)
                # one that is being written, one that is wrong, and one that is new
                here.write(A, dense.file(A)[:150])
                here.write(B, "sie_id: [")
                time.sleep(0.5)
                here.write(A, dense.file(A))
                here.wait_for(A, "dense")
                assert {here.variant_of(row["dense"]) for row in bulk.result()} == {"mean"}
                assert ["not valid YAML" in line for line in here.problems().values()] == [True]
                before = here.steps_of(D)
                pool.submit(here.put, cls.file(D))
                wait_for(lambda: here.steps_of(D) > before)
                os.kill(here.crowd.companion.pid, signal.SIGKILL)
                here.wait_for(D, "cls")
            assert here.delete(D) == (200, '{"model":"test/d","done":"removed"}')
            wait_for(lambda: here.is_settled(A, B, C))
        loads = Counter(
            re.findall(r"INFO tritonserver: loading: (\S+@\S+-inference):1 ", here.crowd.server.log.path.read_text())
        )
        assert set(loads.values()) == {1}
        here.check((A, "mean"), (A, "dense"), (B, "mean"), (D, "mean"), (D, "cls"))
        assert max(number for _, number in copies) == 1
