"""Directories of models: their small files, tokenizers and headers of weights, and the weights themselves."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from sie_triton.checkpoints.contents import LENGTH_BYTES
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models import families
from sie_triton.models.catalog import recognise
from sie_triton.models.catalog.on_disk import check_weights
from tests.fuzz.damage import EDITS, damaged, edited
from tests.fuzz.models import saved_models
from tests.fuzz.quiet import one_thread, silence
from tests.fuzz.target import Target, check_line
from tests.fuzz.trees import changed, to_json
from tests.support.hostile import copied, put

BASES = ("dense/model", "roberta/model", "splade/model", "pylate/model", "stanford/model", "bge_m3/model")
BASES += ("cross_encoder/model", "clip", "clap", "gliner/model", "classifier", "plain")

# Bases of which each load takes the least time.
WEIGHED = ("dense/model", "pylate/model", "bge_m3/model", "cross_encoder/model")

SMALL = (".json", ".metadata")

REFUSALS = (CatalogError, LoadError)


class Spoilt(NamedTuple):
    """A model whose `file` has another content."""

    base: str
    file: str
    content: bytes


@contextmanager
def checkpoints(directory: Path) -> Iterator[Target]:
    """Yield the target of directories as they are recognised, checked, and loaded by preprocess."""
    models = saved_models(directory)
    cases = st.one_of(
        [spoilt(models, base, weights=False) for base in BASES] * 3 + [spoilt(models, base) for base in BASES]
    )
    with quickly_recognised():
        yield Target(cases, lambda case: with_copy(models, directory, case, read), REFUSALS)


@contextmanager
def weights(directory: Path) -> Iterator[Target]:
    """Yield the target of directories as a worker loads them."""
    from tests.support.loading import load_adapter

    models = saved_models(directory)
    cases = st.one_of([spoilt(models, base, tokenizers=False) for base in WEIGHED])
    with quickly_recognised(), one_thread(), silence():
        specs = {base: resolved(models / base) for base in WEIGHED}
        load = lambda path, base: load_adapter(specs[base], path)  # noqa: E731
        yield Target(cases, lambda case: with_copy(models, directory, case, load), REFUSALS)


@contextmanager
def quickly_recognised() -> Iterator[None]:
    """Look for other packages' families once: that takes ten times as long as to read a directory."""
    with patch.object(families, "entry_points", cache(families.entry_points)):
        yield


def spoilt(models: Path, base: str, *, weights: bool = True, tokenizers: bool = True) -> SearchStrategy[Spoilt]:
    """Return a strategy of one model with one other file."""
    names = [str(path.relative_to(models / base)) for path in sorted((models / base).rglob("*")) if path.is_file()]
    chosen = [name for name in names if name.endswith(SMALL) and (tokenizers or "tokenizer" not in name)]
    others = [name for name in names if weights and name.endswith(".safetensors")]
    return st.one_of([content_of(models, base, name) for name in (*chosen, *others)])


def content_of(models: Path, base: str, name: str) -> SearchStrategy[Spoilt]:
    file = (models / base / name).read_bytes()
    if name.endswith(".safetensors"):
        contents = headers_of(file)
    else:
        contents = st.one_of(*[changed([json.loads(file)]).map(to_json)] * 3, damaged([file]))
    return contents.map(lambda content: Spoilt(base, name, content))


def headers_of(file: bytes) -> SearchStrategy[bytes]:
    """Return a strategy of weights with changed headers, or edited."""
    end = LENGTH_BYTES + int.from_bytes(file[:LENGTH_BYTES], "little")
    header, data = json.loads(file[LENGTH_BYTES:end]), file[end:]
    trees = changed([header]).map(lambda tree: with_header(tree, data))
    return st.one_of(trees, trees, st.builds(edited, st.just(file), EDITS))


def with_header(header: Any, data: bytes) -> bytes:
    """Return a file of safetensors."""
    text = to_json(header)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + data


def with_copy(models: Path, directory: Path, case: Spoilt, use: Callable[[Path, str], object]) -> None:
    """Call `use` with a spoilt copy of a model, and the name of the model."""
    path = directory / "model"
    shutil.rmtree(path, ignore_errors=True)
    copied(models / case.base, path)
    put(case.file, case.content)(path)
    try:
        use(path, case.base)
    except REFUSALS as exc:
        for line in str(exc).split("\n"):  # a CatalogError has a line for each fault
            check_line(LoadError(line), 5000)
        raise


def read(path: Path, base: str) -> None:
    spec = resolved(path)
    check_weights(spec)
    families.load_processor(families.fitted(spec, path), path)


def resolved(path: Path) -> ModelSpec:
    runtime = Runtime(status_dir=str(path.parent))  # without it, each reader of images keeps a file open
    return recognise(path, "mine", {"weights_path": str(path)}).resolve(runtime)
