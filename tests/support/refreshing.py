"""A data directory whose repository follows its model files, as a launcher and its controller handle it."""

from pathlib import Path

import yaml

from sie_triton.pipeline.render.pbtxt import from_text
from sie_triton.pipeline.render.refresh import refresh, start
from sie_triton.records.serving_file import read_serving, repository_of
from sie_triton.settings import read_settings

STAGES = ("preprocess", "inference", "postprocess")


def model_file(model, max_sequence_length=64, dim=8, score=False, **more):
    tasks = {"encode": {"multivector": {"dim": dim}}, **({"score": {}} if score else {})}
    profile = {"adapter_path": "multivector"}
    content = {"sie_id": model, "weights_path": "/usr", "tasks": tasks, "profiles": {"default": profile}}
    return yaml.safe_dump({**content, "max_sequence_length": max_sequence_length, **more})


class RefreshedServer:
    """Handles files like a launcher and its controller."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root, self.data_dir, self.models_dir = root, root / "data", root / "models"
        self.models_dir.mkdir(parents=True)
        self.repository = repository_of(self.data_dir)
        self.given = {"data_dir": self.data_dir, "models_dir": self.models_dir, "device": "cpu", **settings}

    def file(self, name: str, *arguments, **given) -> Path:
        path = self.models_dir / f"{name}.yaml"
        path.write_text(model_file(f"test/{name}", *arguments, **given))
        return path

    def start(self, *names: str):
        self.data_dir.mkdir(exist_ok=True)
        return start(read_settings(**self.given), names)

    def refresh(self, **change):
        return refresh(self.data_dir, **change)

    def steps(self, ensemble: str) -> str:
        """Return the common name of the ensemble's steps; check that all of them are there."""
        ((first, *_),) = [
            [step.model_name for step in from_text(path.read_text()).ensemble_scheduling.step]
            for path in [self.repository / ensemble / "config.pbtxt"]
        ]
        steps = first.rpartition("-")[0]
        assert all((self.repository / f"{steps}-{stage}" / "1" / "model.py").exists() for stage in STAGES)
        return steps

    @property
    def serving(self):
        return read_serving(self.data_dir)
