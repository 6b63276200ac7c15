"""Tokenizers of served models in a door: texts → tokens, and ids → texts, as text-embeddings-inference answers."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sie_triton.contract.spec import ModelSpec
from sie_triton.doors.memory import hold
from sie_triton.errors import InputError
from sie_triton.records.tokenizer_links import published_tokenizer

if TYPE_CHECKING:
    import tokenizers

Result = TypeVar("Result")

# Tokenizers in memory, in each door process. A large one takes some 100 MB.
NUM_TOKENIZERS = 2

# Characters, or token ids, of one request, and the memory for each in an answer, in bytes.
MAX_CHARACTERS, CHARACTER_BYTES = 2**18, 400


def check_size(field: str, size: int) -> None:
    """Raise InputError if a request has too many characters or ids for a tokenizer, Failure 429 without memory."""
    if size > MAX_CHARACTERS:
        raise InputError.at(field, f"has {size} characters or ids; send at most {MAX_CHARACTERS}")
    hold(CHARACTER_BYTES * size)


class Tokenizers:
    """The tokenizers that were used last. Belongs to one event loop; one thread at a time works with them."""

    def __init__(self, status_dir: Path) -> None:
        self._status_dir = status_dir
        self._opened: OrderedDict[Path, tokenizers.Tokenizer] = OrderedDict()
        self._turn = asyncio.Lock()

    def find(self, spec: ModelSpec) -> Path | None:
        """Return where the tokenizer of a model is; None if the model has not been used since the server's start."""
        return published_tokenizer(self._status_dir, spec)

    async def use(self, directory: Path, act: "Callable[[tokenizers.Tokenizer], Result]") -> Result:
        """Return the result of `act`, on a thread; LoadError if the tokenizer cannot be opened."""
        async with self._turn:
            return await asyncio.to_thread(lambda: act(self._tokenizer(directory)))

    def _tokenizer(self, directory: Path) -> "tokenizers.Tokenizer":
        from sie_triton.models.inputs.tokenizer import read_whole  # here, because most doors tokenize nothing

        if directory not in self._opened:
            self._opened[directory] = read_whole(directory)
        self._opened.move_to_end(directory)
        while len(self._opened) > NUM_TOKENIZERS:
            self._opened.popitem(last=False)
        return self._opened[directory]


def tokenized(tokenizer: "tokenizers.Tokenizer", texts: Sequence[str], *, is_special: bool) -> list[list[Any]]:
    """Return the tokens of each text, whose `start` and `stop` count bytes of UTF-8; special ones have none."""
    from sie_triton.models.inputs.growth import check_whole
    from sie_triton.models.inputs.text import reading

    with reading("inputs"):
        check_whole(texts, tokenizer)
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=is_special)
    return [_tokens(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]


def _tokens(text: str, encoding: Any) -> list[dict[str, Any]]:
    starts = range(len(text) + 1) if text.isascii() else [0, *accumulate(len(letter.encode()) for letter in text)]
    return [
        {"id": number, "text": token, "special": True, "start": None, "stop": None}
        if special
        else {"id": number, "text": text[start:stop], "special": False, "start": starts[start], "stop": starts[stop]}
        for number, token, special, (start, stop) in zip(
            encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
        )
    ]


def decoded(tokenizer: "tokenizers.Tokenizer", rows: Sequence[Sequence[int]], *, skips_special: bool) -> list[str]:
    """Return the text of each list of ids; InputError for an id that is not in the vocabulary."""
    for i, row in enumerate(rows):
        unknown = next((each for each in set(row) if tokenizer.id_to_token(each) is None), None)
        if unknown is not None:
            raise InputError.at(f"ids[{i}]", f"{unknown} is no id of the model's tokenizer")
    return [tokenizer.decode(list(row), skip_special_tokens=skips_special) for row in rows]
