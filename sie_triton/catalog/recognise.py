"""A directory as sentence-transformers or PyLate saves it → ModelConfig, with no model file written."""

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
    Tasks,
)
from sie_triton.errors import CatalogError, LoadError
from sie_triton.weights.bge_m3 import BgeM3Files, read_linear
from sie_triton.weights.sentence_transformers import (
    MultiVectorFiles,
    SentenceTransformerFiles,
    SparseEncoderFiles,
    kind_of,
)


def recognise(directory: Path, model: str, source: dict[str, Any]) -> ModelConfig:
    """Describe the model in `directory`; `source` is its hf_id or weights_path.

    Raises CatalogError when the directory holds no model this server can run.
    """
    try:
        family = kind_of(directory)
        normalize: bool | None = None
        files: SentenceTransformerFiles | SparseEncoderFiles | MultiVectorFiles | BgeM3Files
        if family == "splade":
            files = SparseEncoderFiles.read(directory)
            encode = Encode(sparse=Output(dim=files.dim))
        elif family == "multivector":
            files = MultiVectorFiles.read(directory)
            encode = Encode(multivector=Output(dim=files.dim))
        elif family == "bge_m3":
            files = BgeM3Files.read(directory)
            normalize = files.dense.normalize
            encode = Encode(
                dense=Output(dim=files.dense.dim),
                sparse=Output(dim=files.vocab_size),
                multivector=Output(dim=read_linear(files.colbert_linear, files.hidden_size).out_features),
            )
        else:
            files = SentenceTransformerFiles.read(directory)
            normalize = files.normalize
            encode = Encode(dense=Output(dim=files.dim))
    except LoadError as exc:
        raise CatalogError(f"{directory}: {exc}") from exc
    return ModelConfig(
        sie_id=model,
        **source,
        inputs=Inputs(text=True),
        tasks=Tasks(encode=encode),
        max_sequence_length=files.text.max_sequence_length,
        profiles={
            "default": Profile(
                adapter_path=family, adapter_options=AdapterOptions(runtime=RuntimeOptions(normalize=normalize))
            )
        },
    )
