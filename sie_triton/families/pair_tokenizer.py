"""Query and text → one row of packed token ids, with the ids that tell the two apart. No torch."""

from collections.abc import Sequence

from sie_triton.families.base import Text, Tokens
from sie_triton.inputs.tokenizer import TextTokenizer, packed_ids


class PairTokenizer(TextTokenizer):
    """The longer of the two is cut first, as sentence-transformers' CrossEncoder does."""

    reads_pairs = True

    def encode(self, texts: Sequence[Text], *, is_query: bool = False) -> Tokens:
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        tokens = packed_ids([encoding.ids for encoding in encodings])
        types = packed_ids([encoding.type_ids for encoding in encodings]).input_ids
        return Tokens(tokens.input_ids, tokens.lengths, types)
