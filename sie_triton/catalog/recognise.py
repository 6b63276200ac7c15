"""A directory as sentence-transformers or PyLate saves it → ModelConfig, with no model file written."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sie_triton.catalog.config import (
    AdapterOptions,
    Encode,
    Inputs,
    ModelConfig,
    Output,
    Profile,
    RuntimeOptions,
    Score,
    Tasks,
)
from sie_triton.errors import CatalogError, LoadError
from sie_triton.weights.cross_encoder import CrossEncoderFiles
from sie_triton.weights.kind import kind_of
from sie_triton.weights.sentence_transformers import (
    MultiVectorFiles,
    SentenceTransformerFiles,
    SparseEncoderFiles,
)

Files = SentenceTransformerFiles | SparseEncoderFiles | MultiVectorFiles | CrossEncoderFiles


def recognise(directory: Path, model: str, source: dict[str, Any]) -> ModelConfig:
    """Describe the model in `directory`; `source` is its hf_id or weights_path.

    Raises CatalogError when the directory holds no model this server can run.
    """
    try:
        family = kind_of(directory)
        files, tasks = READERS[family](directory)
    except LoadError as exc:
        raise CatalogError(f"{directory}: {exc}") from exc
    normalize = files.normalize if isinstance(files, SentenceTransformerFiles) else None
    return ModelConfig(
        sie_id=model,
        **source,
        inputs=Inputs(text=True),
        tasks=tasks,
        max_sequence_length=files.text.max_sequence_length,
        profiles={
            "default": Profile(
                adapter_path=family, adapter_options=AdapterOptions(runtime=RuntimeOptions(normalize=normalize))
            )
        },
    )


def _dense(directory: Path) -> tuple[SentenceTransformerFiles, Tasks]:
    files = SentenceTransformerFiles.read(directory)
    return files, Tasks(encode=Encode(dense=Output(dim=files.dim)))


def _sparse(directory: Path) -> tuple[SparseEncoderFiles, Tasks]:
    files = SparseEncoderFiles.read(directory)
    return files, Tasks(encode=Encode(sparse=Output(dim=files.dim)))


def _multivector(directory: Path) -> tuple[MultiVectorFiles, Tasks]:
    files = MultiVectorFiles.read(directory)
    return files, Tasks(encode=Encode(multivector=Output(dim=files.dim)), score=Score())


def _cross_encoder(directory: Path) -> tuple[CrossEncoderFiles, Tasks]:
    return CrossEncoderFiles.read(directory), Tasks(score=Score())


READERS: Mapping[str, Callable[[Path], tuple[Files, Tasks]]] = {
    "sentence_transformer": _dense,
    "splade": _sparse,
    "multivector": _multivector,
    "cross_encoder": _cross_encoder,
}
