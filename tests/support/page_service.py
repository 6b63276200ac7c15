"""`sie-triton serve` with small models, for the tests of the status page and its picture."""

import signal
from collections.abc import Sequence
from pathlib import Path

from sie_triton.controller.commands import ask, path_of
from tests.conftest import fresh_settings, gliner_file, model_file
from tests.server.test_serve import port_flags, sie
from tests.support.gliners import save_gliner
from tests.support.models import save_bge_m3
from tests.support.towers import save_clip

BGE_M3, GLINER, CLIP = "my/bge-m3", "my/gliner", "my/clip"
PROFILES = {"long": {"normalize": False, "output_types": ["dense"]}}  # vectors of other lengths than 1
HYBRID = {"dense": {"dim": 64}, "sparse": {"dim": 30522}, "multivector": {"dim": 32}}


def save_models(root: Path, tokenizer: Path) -> None:
    """Write the model files of BGE_M3, GLINER and CLIP to `root / "models"`, and their weights beside it."""
    bge_m3 = save_bge_m3(root / "bge-m3", tokenizer, 32)
    save_gliner(root / "gliner", tokenizer, num_rnn_layers=0)
    save_clip(root / "clip", tokenizer)
    files = {
        "bge-m3": model_file(BGE_M3, bge_m3, "bge_m3", {"encode": HYBRID, "score": {}}, profiles=PROFILES),
        "gliner": gliner_file(GLINER, root / "gliner" / "model"),
        "clip": model_file(CLIP, root / "clip", "clip", {"encode": {"dense": {"dim": 32}}}, inputs=("text", "image")),
    }
    (root / "models").mkdir()
    for name, content in files.items():
        (root / "models" / f"{name}.yaml").write_text(content)


class Service:
    """`sie-triton serve` with small models, which may be restarted on the same ports."""

    def __init__(self, root: Path, models: Sequence[str]) -> None:
        self._models = models
        self.settings = fresh_settings(root)
        ports = [getattr(self.settings, f"{name}_port") for name in ("http", "grpc", "metrics", "controller", "door")]
        # A machine under load may take longer than the default for the first load.
        given = {"models-dir": root / "models", "data-dir": self.settings.data_dir, "door-timeout-s": 120}
        self._flags = [*(f"--{name}={value}" for name, value in given.items()), *port_flags(ports)]
        self.url = f"http://127.0.0.1:{self.settings.door_port}"

    def start(self) -> None:
        self._process = sie("serve", *self._models, *self._flags)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "SIE ready\n"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=40)

    def evict(self, model: str) -> None:
        ask(self.settings, f"{path_of(model)}/evict", "POST")
