"""Write the model repository, a whole model at a time, and find differences in an existing one."""

import os
import py_compile
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sie_triton.contract.names import triton_name
from sie_triton.contract.spec import ModelSpec
from sie_triton.pipeline.render.pbtxt import composing_models, ensembles, from_text, to_text
from sie_triton.records.revisions import ensembles_of, revision_of, steps_behind, steps_name
from sie_triton.records.status import STAGES
from sie_triton.system.native.builds import HOOK, INSTALL
from sie_triton.system.native.loading import put

CONFIG = "config.pbtxt"
CODE = Path("1/model.py")

HOOK_NAME = "batchstrategy.so"
NO_HOOK = (
    "warning: the admission hook cannot be compiled, or the data directory is mounted noexec, so Triton batches by "
    "request count only; results are the same, and inference still splits its batches by cost. To batch by cost in the "
    f"queue too, {INSTALL}, or set SIE_DATA_DIR to a directory where programs may run"
)


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Options that are the same for all models of a repository."""

    max_batch_requests: int = 64
    max_queue_delay_us: int = 0
    preloaded: frozenset[str] = frozenset()


Files = Mapping[Path, str]


def build_hook(directory: Path) -> Path | None:
    """Put the admission hook into `directory`, and return its path; None if it cannot be compiled, or not run."""
    hook = directory / HOOK_NAME
    return hook if put(HOOK, hook) else None


def render(
    directory: Path, specs: Sequence[ModelSpec], options: RenderOptions, hook: Path | None = None, revision: int = 0
) -> None:
    """Write all models of `specs` into `directory`; other models and other revisions stay.

    Each directory is replaced by one rename, so that a reader never sees an incomplete one. The ensembles are written
    last. `hook` is the compiled admission hook, which is copied into each inference model.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for spec in specs:
        models = _models(spec, options, revision)
        for name, files in reversed(list(models.items())):
            hooked = hook if name.endswith("-inference") else None
            _replace(directory / name, files, hooked, has_code=bool(revision) and CODE in files)
        _remove(directory, set(_ensemble_names(directory, triton_name(spec.model))) - models.keys())


def remove(directory: Path, model: str) -> None:
    """Remove the ensembles of Triton's `model` from `directory`; requests in progress still need its steps."""
    _remove(directory, _ensemble_names(directory, model))


def all_ensembles(directory: Path) -> list[str]:
    """Return the names of all ensembles in `directory`, which are the models that clients call."""
    names = (path.parent.name for path in directory.glob(f"[!.]*/{CONFIG}"))
    return sorted(name for name in names if not name.endswith(tuple(f"-{stage}" for stage in STAGES)))


def rendered_revision(directory: Path, model: str) -> int | None:
    """Return the revision of Triton's `model` in `directory`; None if the model is not there."""
    config = directory / model / CONFIG
    return revision_of(steps_behind(config.read_text())) if config.exists() else None


def check(directory: Path, specs: Sequence[ModelSpec], options: RenderOptions) -> list[str]:
    """Return the differences between `directory` and a fresh rendering, one line each."""
    wanted = {path: text for spec in specs for path, text in _files(spec, options, 0).items()}
    found = {path.relative_to(directory) for path in _rendered_files(directory)}
    lines = [f"{path}: missing" for path in sorted(wanted.keys() - found)]
    lines += [f"{path}: belongs to no model" for path in sorted(found - wanted.keys())]
    lines += [f"{path}: differs" for path in sorted(found & wanted.keys()) if _differs(directory, path, wanted[path])]
    return lines


def is_current(directory: Path, spec: ModelSpec, options: RenderOptions, revision: int) -> bool:
    """Return whether a fresh rendering of that revision would change nothing."""
    wanted = _files(spec, options, revision)
    names = {path.parts[0] for path in wanted}
    return set(_ensemble_names(directory, triton_name(spec.model))) <= names and not any(
        _differs(directory, path, text) for path, text in wanted.items()
    )


def _ensemble_names(directory: Path, model: str) -> list[str]:
    """Return the names of a model's rendered ensembles."""
    return [name for name in ensembles_of(model) if (directory / name).is_dir()]


def _files(spec: ModelSpec, options: RenderOptions, revision: int) -> Files:
    """Return the contents of a model's files, by path relative to the repository."""
    models = _models(spec, options, revision)
    return {Path(name) / path: text for name, files in models.items() for path, text in files.items()}


def _differs(directory: Path, path: Path, wanted: str) -> bool:
    """Return whether a file differs from `wanted`. Configurations are compared as protobufs, as their text may vary."""
    try:
        found = (directory / path).read_text()
        return found != wanted if path.name != CONFIG else from_text(found) != from_text(wanted)
    except (OSError, ValueError):
        return True


def _models(spec: ModelSpec, options: RenderOptions, revision: int) -> Mapping[str, Files]:
    """Return the files of each directory: first the ensembles, then their composing models."""
    name = triton_name(spec.model)
    steps = steps_name(name, revision)
    models: dict[str, Files] = {
        # Triton requires a version directory, which is empty for an ensemble.
        config.name: {Path(CONFIG): to_text(config), Path("1/.gitkeep"): ""}
        for config in ensembles(spec, name, steps)
    }
    for config in composing_models(
        spec,
        steps,
        max_batch_requests=options.max_batch_requests,
        max_queue_delay_us=options.max_queue_delay_us,
        residency="resident" if spec.model in options.preloaded else "on_demand",
        at_start=not revision,
    ):
        model = f"{config.name.rpartition('-')[2].capitalize()}Model"
        code = f"from sie_triton.pipeline.stages.triton import {model} as TritonPythonModel  # noqa: F401\n"
        models[config.name] = {Path(CONFIG): to_text(config), CODE: code}
    return models


def _rendered_files(directory: Path) -> Iterable[Path]:
    return (
        path
        for path in directory.rglob("*")
        if path.is_file() and path.name != HOOK_NAME and "__pycache__" not in path.parts
    )


def _replace(target: Path, files: Files, hook: Path | None, *, has_code: bool) -> None:
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    fresh.chmod(0o755)
    for path, text in files.items():
        (fresh / path).parent.mkdir(parents=True, exist_ok=True)
        (fresh / path).write_text(text)
    if hook is not None:
        shutil.copy(hook, fresh / HOOK_NAME)
    if has_code:
        # If Python wrote the bytecode when the step is loaded, Triton would see a changed directory and load the step
        # again with its ensemble.
        py_compile.compile(str(fresh / CODE), dfile=str(target / CODE))
    if target.exists():
        _remove(target.parent, [target.name], fresh)
    else:
        os.rename(fresh, target)


def _remove(directory: Path, names: Iterable[str], replacement: Path | None = None) -> None:
    """Remove directories, each by one rename; a `replacement` takes the place of a single one."""
    for name in names:
        old = directory / f".{name}.old"
        shutil.rmtree(old, ignore_errors=True)
        os.rename(directory / name, old)
        if replacement is not None:
            os.rename(replacement, directory / name)
        shutil.rmtree(old)
