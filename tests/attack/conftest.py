"""`sie-triton serve` as people start it, with one model of each kind that this suite attacks."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from sie_triton.contract.names import triton_name
from sie_triton.records.status import all_records
from sie_triton.settings import Settings
from sie_triton.system.processes.pids import is_alive
from tests.conftest import (
    CLAP,
    CLIP,
    COLBERT,
    CROSS_ENCODER,
    GLINER,
    MINILM,
    MUVERA,
    SPLADE,
    fresh_settings,
    gliner_file,
    minilm_file,
    model_file,
)
from tests.support import one_thread  # noqa: F401
from tests.support.gliners import save_gliner
from tests.support.models import save_cross_encoder, save_pylate, save_splade
from tests.support.signals import heed_signals
from tests.support.towers import save_clap, save_clip

MODELS = (MINILM, COLBERT, SPLADE, CROSS_ENCODER, CLIP, CLAP, GLINER)
READY_S = 120
ADMIN_TOKEN = "for-tests"


@dataclass
class Served:
    """A running `sie-triton serve`."""

    settings: Settings
    process: subprocess.Popen[str]

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.settings.grpc_port}"

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.settings.http_port}"

    def tritonserver(self) -> psutil.Process:
        (found,) = [p for p in psutil.Process(self.process.pid).children() if p.name() == "tritonserver"]
        return found

    def pids(self, models: Collection[str] = MODELS) -> set[int]:
        """Process ids of the living stages and workers of `models`, and of all living children of the launcher."""
        records = [
            record
            for by_model in all_records(self.settings.status_dir).values()
            for model, of_model in by_model.items()
            if model in map(triton_name, models)
            for record in of_model
        ]
        named = {r[name] for r in records for name in ("pid", "worker_pid") if r[name]}
        children = {child.pid for child in psutil.Process(self.process.pid).children()}
        return {pid for pid in named | children if is_alive(pid)}


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("attacked")
    models_dir = root / "models"
    models_dir.mkdir()
    multivector, sparse = {"multivector": {"dim": 32}}, {"sparse": {"dim": 30522}}
    colbert, splade = save_pylate(root / "colbert", minilm_directory), save_splade(root / "splade", minilm_directory)
    save_gliner(root / "gliner", minilm_directory, num_rnn_layers=0)
    save_clip(root / "clip", minilm_directory)
    save_clap(root / "clap", minilm_directory)
    dense = {"encode": {"dense": {"dim": 32}}}
    files = {
        CLIP: model_file(CLIP, root / "clip", "clip", dense, inputs=("text", "image")),
        CLAP: model_file(CLAP, root / "clap", "clap", dense, inputs=("text", "audio")),
        GLINER: gliner_file(GLINER, root / "gliner" / "model"),
        MINILM: minilm_file(MINILM, 256, 16384),
        COLBERT: model_file(
            COLBERT, colbert, "multivector", {"encode": multivector, "score": {}}, runtime={"muvera": MUVERA}
        ),
        SPLADE: model_file(SPLADE, splade, "splade", {"encode": sparse}),
        CROSS_ENCODER: model_file(
            CROSS_ENCODER, save_cross_encoder(root / "ce", minilm_directory), "cross_encoder", {"score": {}}
        ),
    }
    for name, text in files.items():
        (models_dir / f"{re.sub('/', '__', name)}.yaml").write_text(text)
    settings = fresh_settings(root, models_dir=models_dir, admin_token=ADMIN_TOKEN, door_tei_model=MINILM)
    with serving(settings) as served:
        yield served


class serving:
    """Start the server; at the end it must exit cleanly, and leave nothing behind."""

    def __init__(self, settings: Settings) -> None:
        given = settings.model_dump(exclude_defaults=True)
        environment = {f"SIE_{name.upper()}": str(value) for name, value in given.items()}
        self._settings = settings
        heed_signals()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sie_triton.cli", "serve"],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Served:
        assert self._process.stdout is not None
        assert any(line.strip() == "SIE ready" for line in self._process.stdout)
        return Served(self._settings, self._process)

    def __exit__(self, *_: object) -> None:
        left = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(signal.SIGHUP)
        assert self._process.wait(30) == 0
        deadline = time.monotonic() + 5
        while any(is_alive(child.pid) for child in left) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [child for child in left if is_alive(child.pid)] == []
        assert list(Path("/dev/shm").glob(f"sie_{self._process.pid}_*")) == []
