"""Reads the files of a ColBERT checkpoint that Stanford's own code saved.

One file of weights holds the encoder and the projection; artifact.metadata, which may be missing, says how they are
used. No torch, as preprocess reads these.
"""

import string
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from sie_triton.errors import LoadError
from sie_triton.weights.sentence_transformers import (
    DenseLayer,
    Expansion,
    MultiVectorFiles,
    TextFiles,
    hidden_size,
    read_json,
)

ARCHITECTURE = "HF_ColBERT"
METADATA = "artifact.metadata"

# What Stanford's code takes where artifact.metadata does not say.
QUERY_MARKER, DOCUMENT_MARKER = "[unused0]", "[unused1]"
QUERY_LENGTH, DIM = 32, 128


def read_multi_vector(directory: Path) -> MultiVectorFiles:
    """A late-interaction model's files, whoever saved them; LoadError names the one that cannot be used."""
    return _read(directory) if is_stanford_colbert(directory) else MultiVectorFiles.read(directory)


def is_stanford_colbert(directory: Path) -> bool:
    """By transformers' config.json, unless modules.json is there to say more."""
    if (directory / "modules.json").exists():
        return False
    return ARCHITECTURE in (read_json(directory / "config.json", default={}).get("architectures") or ())


def _read(directory: Path) -> MultiVectorFiles:
    text = TextFiles.read(directory)
    metadata = read_json(directory / METADATA, default={})
    dim = _dim(directory, metadata)
    query, document = (
        f"{metadata.get(key) or marker} "
        for key, marker in (("query_token_id", QUERY_MARKER), ("doc_token_id", DOCUMENT_MARKER))
    )
    return MultiVectorFiles(
        # Without a role a text is a document.
        text=replace(text, prompts={"query": query, "document": document}, default_prompt=document),
        dim=dim,
        dense=(DenseLayer(directory, hidden_size(text.config), dim, False, "torch.nn.modules.linear.Identity"),),
        normalize=True,
        query_length=0,
        document_length=int(metadata.get("doc_maxlen") or 0),
        expansion=Expansion(
            length=int(metadata.get("query_maxlen") or QUERY_LENGTH),
            is_ceiling=True,
            attend=bool(metadata.get("attend_to_mask_tokens")),
            token="",
        ),
        markers=(query, document),
        skipped=tuple(string.punctuation) if metadata.get("mask_punctuation", True) else (),
        skipped_in=("document",),
    )


def _dim(directory: Path, metadata: dict[str, Any]) -> int:
    """Entries of a vector, by the weights; by artifact.metadata where only the small files have been fetched."""
    path = directory / "model.safetensors"
    if not path.exists():
        return int(metadata.get("dim") or DIM)
    try:
        with safe_open(path, "numpy") as weights:
            return int(weights.get_slice("linear.weight").get_shape()[0])
    except (OSError, SafetensorError) as exc:
        raise LoadError(f"{path}: cannot be read: {exc}", "corrupt") from exc
