"""Local checks of the weights and LoRA adapters that a model file refers to. No request goes to the hub."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from sie_triton.checkpoints.contents import SAFETENSORS, check_complete, check_safetensors
from sie_triton.checkpoints.files import inside, read_fields
from sie_triton.checkpoints.lora import LoraFiles
from sie_triton.checkpoints.special_tokens import is_before_fast
from sie_triton.contract.spec import ONNX, ModelSpec
from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families import Recognised, family, fitted, load_processor
from sie_triton.models.weights.locate import HUB, locate


def faults(spec: ModelSpec) -> Iterator[str]:
    """Yield a sentence for each reason why requests of the model, or of one of its adapters, would fail."""
    if spec.is_forwarded:
        return
    if not spec.weights.startswith(HUB):
        try:
            directory = check_weights(spec)
            # The library makes tokenizers of an older form when the model is loaded.
            is_older = any(map(is_before_fast, (directory, *directory.glob("*/"))))
            if not is_older and not family(spec.family).other_repositories(directory):
                load_processor(fitted(spec, directory), directory)
        except LoadError as exc:
            yield str(exc)
    for name, where in spec.loras.items():
        try:
            if not where.startswith(HUB):
                LoraFiles.read(locate(where, allow_hub=False))
        except LoadError as exc:
            yield f"loras.{name}: {exc}"


def check_weights(spec: ModelSpec) -> Path:
    """Return the local directory of the weights; LoadError if a file is missing or truncated.

    Reads small files and headers only.
    """
    directory, kind = locate(spec.weights, allow_hub=False), family(spec.family)
    if spec.endpoint is None:
        for path in sorted({*_matching(directory, SAFETENSORS), *_shards(directory)}):
            check_safetensors(path)
        found = None if kind.other_repositories(directory) else _recognised(spec.family, directory)
        if found and found.weights and not spec.allow_pickle:
            check_complete(*found.weights, takes_onnx=ONNX in kind.engines)
    return directory


def _matching(directory: Path, patterns: Sequence[str]) -> Iterator[Path]:
    return (path for pattern in patterns for path in directory.glob(pattern))


def _shards(directory: Path) -> Iterator[Path]:
    """Yield the files that indexes of safetensors name."""
    for path in _matching(directory, [f"{pattern}.index.json" for pattern in SAFETENSORS]):
        index = read_fields(path)
        yield from (inside(path.parent, name, index.where) for name in index.text_map("weight_map").values())


def doubts(spec: ModelSpec) -> Iterator[str]:
    """Yield a warning if the weights are recognised as a model that lacks tasks or outputs of the model file."""
    if spec.is_forwarded:
        return
    try:
        directory = locate(spec.weights, allow_hub=False)
        name, found = family_in(directory)
    except LoadError:  # reported by `faults`, or a directory that only a model file can describe
        return
    asked = {f"encode.{output}" for output in spec.dims if output != "muvera"} | set(spec.tasks) - {"encode"}
    if name != spec.family and asked - _tasks(found):
        yield (
            f"adapter_path: {directory} is recognised as {name}, which does {', '.join(sorted(_tasks(found)))} "
            f"({found.reason}); {spec.family} may misread its weights"
        )


def _recognised(name: str, directory: Path) -> Recognised | None:
    """Recognise the directory; None if the family serves it only when a model file names the family."""
    if not family(name).recognises_quickly:
        return None
    try:
        return family_in(directory, name)[1]
    except LoadError as exc:
        if exc.reason in ("not found", "corrupt"):
            raise
        return None


def _tasks(found: Recognised) -> set[str]:
    done = {"score": found.scores, "extract": found.extracts}
    return {*(f"encode.{output}" for output in found.dims), *(task for task, is_done in done.items() if is_done)}
