"""Query and text → one row of packed token ids, with type ids that distinguish the two. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sie_triton.contract import Features, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, TOKEN_TYPE_IDS
from sie_triton.models.inputs.cutting import encoded
from sie_triton.models.inputs.tokenizer import TextTokenizer, packed_encodings, packed_ids


class PairTokenizer(TextTokenizer):
    """Tokenizer of pairs. Truncates the longer text first, like CrossEncoder of sentence-transformers."""

    reads_pairs = True

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        encodings = encoded(self._tokenizer, framed)
        features = packed_encodings(encodings)
        types = packed_ids([encoding.type_ids for encoding in encodings])[INPUT_IDS.name].values
        return {**features, TOKEN_TYPE_IDS.name: Ragged(types, features[INPUT_IDS.name].lengths)}


def load_processor(spec: ModelSpec, directory: Path) -> PairTokenizer:
    return PairTokenizer.load(directory, spec.max_sequence_length)
