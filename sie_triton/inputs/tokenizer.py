"""Texts → packed token ids, as sentence-transformers would tokenize them. No torch."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers

from sie_triton.checkpoints.files import first_line, has_file
from sie_triton.checkpoints.modules import TextFiles
from sie_triton.errors import LoadError
from sie_triton.families.base import Text, Tokens
from sie_triton.spec import ModelSpec

MUCH = 4


class TextTokenizer:
    """A tokenizer with its model's prompts; safe to call from several threads."""

    # True where queries become other tokens than documents of the same text.
    has_roles = False

    # True where query and text go through the model together.
    reads_pairs = False

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: TextFiles) -> None:
        self._tokenizer = tokenizer
        self._max_length = int((tokenizer.truncation or {}).get("max_length", files.max_sequence_length))
        self._special_ids = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self.prompts = files.prompts
        self.default_prompt = files.default_prompt
        self.include_prompt = files.include_prompt

    @classmethod
    def of(cls, spec: ModelSpec, directory: Path) -> "TextTokenizer":
        """That of a model."""
        return cls.load(directory, spec.max_sequence_length)

    @classmethod
    def load(cls, directory: Path, max_length: int) -> "TextTokenizer":
        """Read the tokenizer of a model directory, truncating to `max_length` tokens."""
        files = TextFiles.read(directory)
        longest = min(max_length, files.max_sequence_length)
        return cls(read_tokenizer(files, longest, pairs=cls.reads_pairs), files)

    def encode(self, texts: Sequence[Text], *, is_query: bool = False) -> Tokens:
        """`is_query` matters where `has_roles`."""
        return packed_ids([encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))])

    def question(self, query: str, instruction: str | None) -> str:
        """What goes with each text that is scored against `query`, where the family scores pairs.

        `instruction` None: the model's own. What `encode` would cut anyway may be left out.
        """
        prompt = self.default_prompt if instruction is None else instruction
        return self.shortened(prompt + query, self._max_length)

    def pairs(self, question: str, texts: Sequence[str]) -> list[Text]:
        """`question` and each text as `encode` takes them."""
        return [(question, text) for text in texts]

    def shortened(self, text: str, max_length: int) -> str:
        """`text`, if it is far too long, to the end of the word in which its token number MUCH · `max_length` ends.

        Which of two texts is cut depends on which is longer: where both are that long, it may be the other by a token.
        """
        max_tokens = MUCH * max_length
        if len(text) <= max_tokens:
            return text
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        offsets = [offset for part in (encoding, *encoding.overflowing) for offset in part.offsets]
        end = max((end for _, end in offsets[:max_tokens]), default=0)
        while end < len(text) and not text[end].isspace():
            end += 1
        return text[:end]

    def prompt_tokens(self, prompt: str) -> int:
        """How many leading tokens pooling must leave out (0 when the prompt is pooled too).

        The prompt is counted alone, without a closing special token, as sentence-transformers does.
        """
        if self.include_prompt or not prompt:
            return 0
        ids = self._tokenizer.encode(prompt).ids
        return len(ids) - (bool(ids) and ids[-1] in self._special_ids)


def read_tokenizer(files: TextFiles, max_length: int, *, pairs: bool = False) -> tokenizers.Tokenizer:
    """tokenizer.json, truncating texts, or `pairs` of them, to `max_length` tokens; LoadError if it cannot be read."""
    path = files.transformer / "tokenizer.json"
    if not has_file(path):
        message = f"tokenizer.json is missing in {files.transformer}; save the tokenizer in its fast form"
        raise LoadError(message, "not found")
    tokenizer, around = _opened(path, pairs)
    if max_length <= around:
        message = f"{max_length} tokens leave no room for a text beside the {around} special ones"
        raise LoadError(f"{message}; raise max_sequence_length", "unsupported")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    if files.do_lower_case:
        normalizers = [tokenizers.normalizers.Lowercase()]
        if tokenizer.normalizer is not None:
            normalizers.append(tokenizer.normalizer)
        tokenizer.normalizer = tokenizers.normalizers.Sequence(normalizers)
    return tokenizer


def _opened(path: Path, pairs: bool) -> tuple[tokenizers.Tokenizer, int]:
    """A tokenizer that has made tokens of a text, and how many special ones it puts around each text or pair.

    The library would not cut at all to fewer than those.
    """
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        around = tokenizer.num_special_tokens_to_add(pairs)
        tokenizer.encode("a", "b" if pairs else None)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as exc:  # the library raises nothing narrower, and its panics are no Exception
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc
    return tokenizer, around


def packed_ids(ids: Sequence[Sequence[int]]) -> Tokens:
    """One text after another."""
    lengths = np.fromiter(map(len, ids), np.int32, len(ids))
    flat = (token for item in ids for token in item)
    return Tokens(np.fromiter(flat, np.int32, int(lengths.sum())), lengths)
