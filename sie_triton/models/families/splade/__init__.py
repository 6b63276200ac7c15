"""Sparse models: a weight for each token of the vocabulary."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from sie_triton.checkpoints.architecture import MASKED_LM, head, is_bare
from sie_triton.checkpoints.contents import CONFIG
from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.modules import modules_of
from sie_triton.checkpoints.positions import UNLIMITED
from sie_triton.checkpoints.sentence_transformers import SPLADE, SparseEncoderFiles
from sie_triton.contract import ENCODE_OUTPUTS, TRUNCATION_SIDE, Features, Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, Tensor
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.families.sentence_transformer import doubtful, reason_with_file
from sie_triton.models.inputs.cutting import kept
from sie_triton.models.inputs.prompt import own_prompt
from sie_triton.models.inputs.text_processor import RoleTokenizer
from sie_triton.models.inputs.tokenizer import (
    TextTokenizer,
    log_disagreements,
    open_tokenizer,
    packed_encodings,
    packed_ids,
    read_tokenizer,
    truncating,
    with_other_side,
)

LOOKUP_IDS = Tensor(
    "lookup_ids", "INT32", (-1,), "[ids] distinct token ids of queries without a forward pass", "lookup_lengths", 0
)


class Splade(TextFamily):
    outputs = (ENCODE_OUTPUTS["sparse"],)
    parameters = (TRUNCATION_SIDE,)
    features = (INPUT_IDS, LOOKUP_IDS)
    takes_loras = True
    reference_adapters = (
        "splade_flash:SPLADEFlashAdapter",
        "gte_sparse_flash:GTESparseFlashAdapter",
        "sentence_transformer:SentenceTransformerSparseAdapter",
    )

    def recognise(self, directory: Path) -> Recognised | None:
        """Recognise a SPLADE model, with doubt if it is a bare masked language model."""
        is_doubtful = is_bare(directory) and head(read_fields(directory / CONFIG, required=False)) == MASKED_LM
        if not is_doubtful and SPLADE not in [name for name, _ in modules_of(directory)]:
            return None
        files = SparseEncoderFiles.read(directory)
        ways = "a sparse model (splade)", "a dense model of averaged states (sentence_transformer)"
        return Recognised(
            reason_with_file(directory, files.text, files.chain),
            files.text.lengths.longest,
            {"sparse": files.dim},
            query_prompt=own_prompt(files.text.prompts, True),
            weights=(files.text.transformer, *([files.idf] if files.idf is not None else [])),
            doubt=doubtful(files.text, *ways) if is_doubtful else "",
        )


class SpladeTokenizer(RoleTokenizer):
    """Tokenizer of a model that reads queries as it reads documents: there is nothing to look up."""

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        return without_lookup(super().encode(framed, is_query=is_query), len(framed))


class LookupTokenizer(TextTokenizer):
    """Tokenizer of documents and a separate one of queries, which has its own length and adds no special tokens."""

    has_roles = True

    def __init__(
        self, queries: tokenizers.Tokenizer, documents: tokenizers.Tokenizer, files: SparseEncoderFiles
    ) -> None:
        super().__init__(documents, files.text)
        self._queries, self._looks_up, self._dim = queries, files.looks_up, files.dim

    def is_query(self, part: Part) -> bool:
        return self._looks_up if part.is_query is None else part.is_query

    def _switch_side(self) -> None:
        super()._switch_side()
        self._queries = with_other_side(self._queries)

    def tokenizer_of(self, part: Part) -> tokenizers.Tokenizer:
        return self._queries if self.is_query(part) else self._tokenizer

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        if not is_query:
            return without_lookup(super().encode(framed), len(framed))
        longest = int((self._queries.truncation or {})["max_length"])
        texts = [kept(self._queries, text, longest) for text in framed]
        encodings = self._queries.encode_batch_fast(texts, add_special_tokens=False)
        found = packed_ids([sorted(set(encoding.ids)) for encoding in encodings])
        # The id past the vocabulary stands for a token that the encoder does not read.
        unread = packed_ids([[self._dim] * min(max(1, len(each.ids)), self._max_length) for each in encodings])
        return {**packed_encodings(encodings), **unread, LOOKUP_IDS.name: found[INPUT_IDS.name]}


def without_lookup(features: Features, num_texts: int) -> Features:
    return {**features, LOOKUP_IDS.name: packed_ids([()] * num_texts)[INPUT_IDS.name]}


def load_processor(spec: ModelSpec, directory: Path) -> TextTokenizer:
    files = SparseEncoderFiles.read(directory)
    if files.idf is None:
        return SpladeTokenizer.load(directory, spec.max_sequence_length, spec.profiles)
    log_disagreements(files.text, spec.max_sequence_length, spec.profiles)
    saved = read_fields(files.idf / "tokenizer_config.json", required=False)
    longest = min(saved.integer("model_max_length", UNLIMITED, least=1, most=None), UNLIMITED)
    queries = truncating(open_tokenizer(files.idf), longest)
    documents = read_tokenizer(files.text, min(spec.max_sequence_length, files.text.lengths.document))
    return LookupTokenizer(queries, documents, files)
