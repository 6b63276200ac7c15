"""Reader of the files of a ColBERT checkpoint that Stanford's own code saved.

One file of weights holds the encoder and the projection. artifact.metadata, which may be missing, says how they are
used. Imports no torch, since preprocess reads these files.
"""

import string
from dataclasses import replace
from pathlib import Path

from sie_triton.checkpoints.architecture import is_bare
from sie_triton.checkpoints.files import Fields, first_line, has_file, read_fields
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.modules import DenseLayer, TextFiles, hidden_size
from sie_triton.checkpoints.positions import num_positions
from sie_triton.checkpoints.transformer_settings import Lengths, role_lengths
from sie_triton.errors import LoadError
from sie_triton.models.families.multivector.files import MultiVectorFiles

ARCHITECTURE = "HF_ColBERT"
METADATA = "artifact.metadata"

# Defaults of Stanford's code.
QUERY_LENGTH, DIM = 32, 128


def read_multi_vector(directory: Path) -> MultiVectorFiles:
    """Read the files of a late-interaction model, saved by any library.

    Raises LoadError naming the file that cannot be used.
    """
    return _read(directory) if is_stanford_colbert(directory) else MultiVectorFiles.read(directory)


def is_stanford_colbert(directory: Path) -> bool:
    """Return True if config.json or artifact.metadata says so, and there is no modules.json."""
    if not is_bare(directory):
        return False
    named = ARCHITECTURE in read_fields(directory / "config.json", required=False).texts("architectures")
    return named or has_file(directory / METADATA)


def _read(directory: Path) -> MultiVectorFiles:
    text = TextFiles.read(directory)
    metadata = read_fields(directory / METADATA, required=False)
    dim = _dim(directory, metadata)
    query = f"{metadata.text('query_token_id', '') or '[unused0]'} "
    document = f"{metadata.text('doc_token_id', '') or '[unused1]'} "
    return MultiVectorFiles(
        # A text without a role is a document.
        text=replace(
            text,
            prompts={"query": query, "document": document},
            default_prompt=document,
            lengths=_lengths(text, metadata),
        ),
        dim=dim,
        dense=(DenseLayer(directory, hidden_size(text.config), dim, False, "torch.nn.modules.linear.Identity"),),
        normalize=True,
        markers=(query, document),
        skipped=tuple(string.punctuation) if metadata.flag("mask_punctuation", True) else (),
        skipped_in=("document",),
    )


def _lengths(text: TextFiles, metadata: Fields) -> Lengths:
    """Return the lengths of roles; the library always fills queries up."""
    expansion = {
        "length": metadata.integer("query_maxlen", 0) or QUERY_LENGTH,
        "strategy": "fixed",
        "attend": metadata.flag("attend_to_mask_tokens", False),
    }
    given = {"query_expansion": expansion, "document_length": metadata.integer("doc_maxlen", 0) or None}
    return role_lengths(Fields(metadata.where, given), text.max_sequence_length, num_positions(text.config))


def _dim(directory: Path, metadata: Fields) -> int:
    """Return the size of a vector, from the weights if they are there, else from artifact.metadata."""
    path = directory / "model.safetensors"
    if not has_file(path):
        return metadata.integer("dim", DIM, least=1, most=LIMITS.max_width)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as weights:
            return int(weights.get_slice("linear.weight").get_shape()[0])
    except (OSError, SafetensorError) as exc:
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc
