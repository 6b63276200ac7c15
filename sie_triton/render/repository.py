"""Writes the model repository tree, whole models at a time, and finds drift in an existing one."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sie_triton.catalog import triton_name
from sie_triton.contract import TASKS
from sie_triton.render.pbtxt import MAX_QUEUE_DELAY_US, composing_models, ensembles, from_text, to_text
from sie_triton.scheduling.hook import HOOK_NAME
from sie_triton.spec import ModelSpec

CONFIG = "config.pbtxt"


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """What is the same for all models of a repository."""

    max_batch_requests: int = 64
    max_queue_delay_us: int = MAX_QUEUE_DELAY_US
    preloaded: frozenset[str] = frozenset()


Files = Mapping[Path, str]


def render(directory: Path, specs: Sequence[ModelSpec], options: RenderOptions, hook: Path | None = None) -> None:
    """Write every model of `specs` into `directory`; models that are not in `specs` stay.

    A model's directory is replaced in one rename, so a reader never sees half a model. `hook` is
    the built admission hook, copied into each inference model.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for spec in specs:
        models = _models(spec, options)
        for name in ensemble_names(directory, triton_name(spec.model)):
            if name not in models:
                shutil.rmtree(directory / name)  # of a task that it no longer has
        for name, files in models.items():
            hooked = hook if name.endswith("-inference") else None
            _replace(directory / name, files, hooked)


def ensemble_names(directory: Path, model: str) -> list[str]:
    """What clients call of a rendered model: its name, and those of its further tasks."""
    return [model, *(name for task in TASKS if (directory / (name := f"{model}-{task}")).is_dir())]


def check(directory: Path, specs: Sequence[ModelSpec], options: RenderOptions) -> list[str]:
    """What differs between `directory` and a fresh rendering, one line a difference."""
    wanted = {
        Path(name) / path: text
        for spec in specs
        for name, files in _models(spec, options).items()
        for path, text in files.items()
    }
    found = {path.relative_to(directory) for path in _rendered_files(directory)}
    lines = [f"{path}: missing" for path in sorted(wanted.keys() - found)]
    lines += [f"{path}: not of any model" for path in sorted(found - wanted.keys())]
    lines += [
        f"{path}: differs"
        for path in sorted(found & wanted.keys())
        if not _same((directory / path).read_text(), wanted[path], path.name)
    ]
    return lines


def _same(found: str, wanted: str, name: str) -> bool:
    """Configurations are compared as protobufs: their text form is not stable across releases."""
    if name != CONFIG:
        return found == wanted
    try:
        return bool(from_text(found) == from_text(wanted))
    except ValueError:
        return False


def _models(spec: ModelSpec, options: RenderOptions) -> Mapping[str, Files]:
    """Directory name → files, for the ensembles and their composing models."""
    name = triton_name(spec.model)
    models: dict[str, Files] = {
        # Triton wants a version directory even where an ensemble has nothing to put in it.
        config.name: {Path(CONFIG): to_text(config), Path("1/.gitkeep"): ""}
        for config in ensembles(spec, name)
    }
    steps = composing_models(
        spec,
        name,
        max_batch_requests=options.max_batch_requests,
        max_queue_delay_us=options.max_queue_delay_us,
        residency="resident" if spec.model in options.preloaded else "on_demand",
    )
    for config in steps:
        stage = config.name.rpartition("-")[2]
        code = f"from sie_triton.stages.triton import {stage.capitalize()} as TritonPythonModel  # noqa: F401\n"
        models[config.name] = {Path(CONFIG): to_text(config), Path("1/model.py"): code}
    return models


def _rendered_files(directory: Path) -> Iterable[Path]:
    return (
        path
        for path in directory.rglob("*")
        if path.is_file() and path.name != HOOK_NAME and "__pycache__" not in path.parts
    )


def _replace(target: Path, files: Files, hook: Path | None) -> None:
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    fresh.chmod(0o755)
    for path, text in files.items():
        (fresh / path).parent.mkdir(parents=True, exist_ok=True)
        (fresh / path).write_text(text)
    if hook is not None:
        shutil.copy(hook, fresh / HOOK_NAME)
    if target.exists():
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(target, old)
        os.rename(fresh, target)
        shutil.rmtree(old)
    else:
        os.rename(fresh, target)
