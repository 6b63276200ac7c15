"""A directory as sentence-transformers saves it → ModelConfig, with no model file written."""

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
from sie_triton.weights.sentence_transformers import SentenceTransformerFiles


def recognise(directory: Path, model: str, source: dict[str, Any]) -> ModelConfig:
    """Describe the model in `directory`; `source` is its hf_id or weights_path.

    Raises CatalogError when the directory holds no model this server can run.
    """
    try:
        files = SentenceTransformerFiles.read(directory)
    except LoadError as exc:
        raise CatalogError(f"{directory}: {exc}") from exc
    return ModelConfig(
        sie_id=model,
        **source,
        inputs=Inputs(text=True),
        tasks=Tasks(encode=Encode(dense=Output(dim=files.dim))),
        max_sequence_length=files.text.max_sequence_length,
        profiles={
            "default": Profile(
                adapter_path="sentence_transformer",
                adapter_options=AdapterOptions(runtime=RuntimeOptions(normalize=files.normalize)),
            )
        },
    )
