"""A directory as sentence-transformers, PyLate or Stanford's ColBERT saves it → ModelConfig; no model file written."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sie_triton.catalog.config import (
    Encode,
    Inputs,
    ModelConfig,
    Output,
    Score,
    Tasks,
)
from sie_triton.catalog.load import complaints
from sie_triton.catalog.options import AdapterOptions, Profile, RuntimeOptions
from sie_triton.checkpoints.bge_m3 import BgeM3Files, read_linear
from sie_triton.checkpoints.cross_encoder import CrossEncoderFiles
from sie_triton.checkpoints.kind import kind_of
from sie_triton.checkpoints.modules import TextFiles
from sie_triton.checkpoints.sentence_transformers import SentenceTransformerFiles, SparseEncoderFiles
from sie_triton.checkpoints.stanford_colbert import read_multi_vector
from sie_triton.errors import CatalogError, LoadError
from sie_triton.weights.locate import locate

# What its texts are like, whether its dense vectors are normalised (None: it has none), what it does.
Recognised = tuple[TextFiles, bool | None, Tasks]


def recognise(directory: Path, model: str, source: dict[str, Any]) -> ModelConfig:
    """Describe the model in `directory`; `source` is its hf_id or weights_path.

    Raises CatalogError when the directory holds no model this server can run.
    """
    try:
        family = kind_of(directory)
        text, normalize, tasks = READERS[family](directory)
    except LoadError as exc:
        raise CatalogError(str(exc)) from exc
    profile = Profile(adapter_path=family, adapter_options=AdapterOptions(runtime=RuntimeOptions(normalize=normalize)))
    try:
        return ModelConfig(
            sie_id=model,
            **source,
            inputs=Inputs(text=True),
            tasks=tasks,
            max_sequence_length=text.max_sequence_length,
            profiles={"default": profile},
        ).found_in(directory)
    except ValidationError as exc:
        raise CatalogError("\n".join(f"{directory}: {line}" for line in complaints(exc, ModelConfig))) from exc


def check_dims(config: ModelConfig) -> None:
    """CatalogError where a model file's dims are not what a directory at hand says.

    What is not at hand, or costs more than a look at small files, is compared when the weights are loaded.
    """
    if config.weights.startswith("hub://") or config.family not in QUICKLY_READ:
        return
    try:
        directory = locate(config.weights, allow_hub=False)
        _, _, tasks = READERS[config.family](directory)
    except LoadError:  # the same then, and a directory may be put right until then
        return
    for name, output in (tasks.encode or Encode()).model_dump().items():
        given = config.dims.get(name)
        if output and given not in (None, output["dim"]):
            raise CatalogError(
                f"{config.source}: tasks.encode.{name}.dim: must be {output['dim']}, as in {directory} (given {given})"
            )


def _dense(directory: Path) -> Recognised:
    files = SentenceTransformerFiles.read(directory)
    return files.text, files.normalize, Tasks(encode=Encode(dense=Output(dim=files.dim)))


def _sparse(directory: Path) -> Recognised:
    files = SparseEncoderFiles.read(directory)
    return files.text, None, Tasks(encode=Encode(sparse=Output(dim=files.dim)))


def _multivector(directory: Path) -> Recognised:
    files = read_multi_vector(directory)
    return files.text, None, Tasks(encode=Encode(multivector=Output(dim=files.dim)), score=Score())


def _bge_m3(directory: Path) -> Recognised:
    files = BgeM3Files.read(directory)
    encode = Encode(
        dense=Output(dim=files.dense.dim),
        sparse=Output(dim=files.vocab_size),
        multivector=Output(dim=read_linear(files.colbert_linear, files.hidden_size).out_features),
    )
    return files.text, files.dense.normalize, Tasks(encode=encode, score=Score())


def _cross_encoder(directory: Path) -> Recognised:
    return CrossEncoderFiles.read(directory).text, None, Tasks(score=Score())


READERS: Mapping[str, Callable[[Path], Recognised]] = {
    "sentence_transformer": _dense,
    "splade": _sparse,
    "multivector": _multivector,
    "bge_m3": _bge_m3,
    "cross_encoder": _cross_encoder,
}

# Without torch.
QUICKLY_READ = ("sentence_transformer", "splade", "multivector")
