"""Late-interaction models (ColBERT): a small vector for each token."""

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import tokenizers
from annotated_types import Gt

from sie_triton.checkpoints.files import has_file
from sie_triton.checkpoints.modules import TextFiles, modules_of
from sie_triton.checkpoints.transformer_settings import Expansion, Lengths
from sie_triton.contract import ENCODE_OUTPUTS, TRUNCATION_SIDE
from sie_triton.contract.spec import ONNX, TORCH, ModelSpec, Profile
from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.models.families.base import Options, Recognised, TextFamily
from sie_triton.models.families.multivector.files import (
    MASK,
    QUERY_LENGTH,
    MultiVectorFiles,
    is_saved_by_pylate,
    vocab_size,
)
from sie_triton.models.families.multivector.stanford_colbert import (
    ARCHITECTURE,
    METADATA,
    is_stanford_colbert,
    read_multi_vector,
)
from sie_triton.models.families.shared.token_pooling import TOKEN_POOLING
from sie_triton.models.inputs.text_processor import Filling, RoleTokenizer, expansion_id, shortest

Length = Annotated[int, Gt(0)]


@dataclass(frozen=True)
class MultiVectorOptions(Options):
    """Options for checkpoints whose files do not give these settings.

    Files of sentence-transformers, PyLate and Stanford's code give them, and take precedence. `muvera_config` is the
    default of a profile's `runtime.muvera`.
    """

    muvera_config: dict[str, Any] | None = None
    token_dim: Length | None = None
    normalize: bool | None = None
    query_prefix: str = ""
    doc_prefix: str = ""
    query_max_length: Length | None = None
    doc_max_length: Length | None = None
    query_expansion: bool | None = None
    skip_special_tokens: Literal[False] | None = None
    doc_punctuation_skiplist: bool | None = None


class MultiVector(TextFamily):
    outputs = (ENCODE_OUTPUTS["multivector"],)
    parameters = (TRUNCATION_SIDE, *TOKEN_POOLING)
    score_modes = ("maxsim",)
    features = (INPUT_IDS,)
    options = MultiVectorOptions
    takes_loras = True
    engines: ClassVar = {TORCH: ".adapter", ONNX: ".adapter"}
    reference_adapters = (
        "colbert:ColBERTAdapter",
        "colbert_modernbert_flash:ColBERTModernBERTFlashAdapter",
        "colbert_rotary_flash:ColBERTRotaryFlashAdapter",
    )
    files = (METADATA,)

    def recognise(self, directory: Path) -> Recognised | None:
        reason = _reason(directory)
        if not reason:
            return None
        files = read_multi_vector(directory)
        layers = [layer.directory for layer in files.dense]
        return Recognised(
            f"{reason}: {files.chain}",
            files.text.lengths.longest,
            {"multivector": files.dim},
            scores=True,
            weights=(files.text.transformer, *(each for each in layers if each != files.text.transformer)),
        )


def files_of(directory: Path, options: MultiVectorOptions) -> MultiVectorFiles:
    """Read the files; `options` apply only if no file makes the checkpoint a late-interaction model."""
    files = read_multi_vector(directory)
    if _reason(directory):
        return files
    prompts = {"query": options.query_prefix, "document": options.doc_prefix}
    own, query_length = files.text.lengths, options.query_max_length or QUERY_LENGTH
    expansion = None if options.query_expansion is False else Expansion(query_length, True, False, "")
    lengths = Lengths(own.text, query_length, options.doc_max_length or own.document, expansion)
    return replace(
        files,
        text=replace(files.text, prompts=prompts, default_prompt=options.doc_prefix, lengths=lengths),
        normalize=options.normalize is not False,
        markers=tuple(filter(None, prompts.values())),
        skipped=tuple(string.punctuation) if options.doc_punctuation_skiplist else (),
    )


def disagreements(files: MultiVectorFiles, options: MultiVectorOptions) -> Iterator[str]:
    """Yield a warning for each option that differs from the checkpoint, whose setting is used."""
    lengths = files.text.lengths
    for name, used in (
        ("token_dim", files.dim),
        ("normalize", files.normalize),
        ("query_prefix", files.text.prompts.get("query", "")),
        ("doc_prefix", files.text.prompts.get("document", "")),
        ("query_max_length", lengths.expansion.length if lengths.expansion else lengths.query),
        ("doc_max_length", lengths.document),
        ("query_expansion", lengths.expansion is not None),
        ("doc_punctuation_skiplist", bool(files.skipped)),
    ):
        said = getattr(options, name)
        if said not in (None, "", used) and str(said).strip() != str(used).strip():
            yield f"{name}: the model file says {said!r}, but the checkpoint says {used!r} and takes precedence"


def _reason(directory: Path) -> str:
    """Return the file that makes it a late-interaction model; empty if none does."""
    if is_stanford_colbert(directory):
        return METADATA if has_file(directory / METADATA) else f"config.json names {ARCHITECTURE}"
    if MASK in [name for name, _ in modules_of(directory)]:
        return "modules.json names MultiVectorMask"
    return "config_sentence_transformers.json is PyLate's" if is_saved_by_pylate(directory) else ""


class MultiVectorTokenizer(RoleTokenizer):
    """Tokenizer of a late-interaction model. Tokens that fill a query up unseen are numbered past the vocabulary."""

    @classmethod
    def of(cls, files: MultiVectorFiles, max_length: int, profiles: Sequence[Profile] = ()) -> Self:
        """Read the tokenizers, given the model's files."""
        return cls.of_roles(files.text, max_length, profiles, partial(with_markers, markers=files.markers))

    @classmethod
    def filling(cls, tokenizer: tokenizers.Tokenizer, files: TextFiles, max_length: int) -> Filling | None:
        """Return how queries are filled up; each added token has a vector."""
        expansion = files.lengths.expansion
        if expansion is None:
            return None
        number = expansion_id(tokenizer, files, expansion) + (0 if expansion.attend else vocab_size(files))
        return Filling(shortest(expansion, max_length), number)


def with_markers(tokenizer: tokenizers.Tokenizer, markers: Sequence[str]) -> tokenizers.Tokenizer:
    """Make markers of roles single tokens, if they were in training."""
    known = tokenizer.get_vocab()
    for marker in markers:
        name = next((name for name in (marker, *marker.split()[:1]) if name in known), None)
        if name is not None and tokenizer.encode(name, add_special_tokens=False).tokens != [name]:
            tokenizer.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True)])
    return tokenizer


def load_processor(spec: ModelSpec, directory: Path) -> MultiVectorTokenizer:
    files = files_of(directory, MultiVectorOptions.of(spec))
    return MultiVectorTokenizer.of(files, spec.max_sequence_length, spec.profiles)
