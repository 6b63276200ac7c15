"""The texts of one request: decoded, and on their way to the tokenizer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from sie_triton.errors import InputError
from sie_triton.families.base import Text
from sie_triton.inputs.prompt import Prompt

if TYPE_CHECKING:
    from sie_triton.inputs.tokenizer import TextTokenizer

# A request past either limit is tokenized beside the others, a chunk at a time.
BULK_TEXTS = 128
BULK_CHARACTERS = 128 * 1024
CHUNK_CHARACTERS = 32 * 1024


NO_PROMPT = Prompt()


@dataclass(frozen=True, slots=True)
class Query:
    """What texts are scored against.

    Where both are read together, the family puts `instruction` to it (None: the model's own); else `prompt` stands
    around it.
    """

    text: str
    prompt: Prompt = NO_PROMPT
    instruction: str | None = None
    in_pairs: bool = False


@dataclass(frozen=True, slots=True)
class Texts:
    """As they were sent; prompts, and the query of a pair, are put to them as they are tokenized."""

    texts: list[str]
    arrived_ns: int
    prompt: Prompt = NO_PROMPT
    is_query: bool = False
    query: Query | None = None

    @property
    def is_bulk(self) -> bool:
        return len(self.texts) > BULK_TEXTS or self._num_characters > BULK_CHARACTERS

    @property
    def _num_characters(self) -> int:
        """All written out."""
        query = self.query or Query("")
        asked = len(query.text) + len(query.instruction or "") + query.prompt.num_characters
        each = self.prompt.num_characters + (asked if query.in_pairs else 0)
        return sum(map(len, self.texts)) + len(self.texts) * each + asked

    def question(self, tokenizer: "TextTokenizer") -> str:
        """What goes with each text of a pair, without what would be cut anyway; empty where there are none."""
        if self.query is None or not self.query.in_pairs:
            return ""
        return tokenizer.question(self.query.text, self.query.instruction)

    def items(self, tokenizer: "TextTokenizer", question: str, texts: Sequence[str]) -> list[Text]:
        """Some of `texts` as the tokenizer takes them."""
        if self.query is not None and self.query.in_pairs:
            return tokenizer.pairs(question, texts)
        return [self.prompt.around(text) for text in texts]

    def chunks(self, question: str) -> Iterator[list[str]]:
        """Consecutive texts of roughly CHUNK_CHARACTERS together, at least one each."""
        each = self.prompt.num_characters + len(question)
        chunk: list[str] = []
        size = 0
        for text in self.texts:
            chunk.append(text)
            size += len(text) + each
            if size >= CHUNK_CHARACTERS:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk


@contextmanager
def reading(name: str) -> Iterator[None]:
    """A panic of the tokenizer's library, which is no Exception, as the fault of what it was given."""
    try:
        yield
    except BaseException as exc:
        if type(exc).__name__ != "PanicException":
            raise
        raise InputError(f"{name}: the model's tokenizer gives up on it; send another text") from exc


def decode(array: npt.NDArray[Any] | None, name: str) -> list[str]:
    """The input `name`, object [1, n] of bytes → n strings."""
    if array is None:
        raise InputError(f"{name}: missing; it is a required input")
    if array.ndim != 2 or array.shape[0] != 1:
        raise InputError(f"{name}: has shape {list(array.shape)}; send a plain vector [n]")
    if array.shape[1] == 0:
        raise InputError(f"{name}: is empty; send at least one item")
    texts = []
    for i, raw in enumerate(array[0]):
        try:
            texts.append(raw.decode())
        except UnicodeDecodeError as exc:
            raise InputError(
                f"{name}[{i}]: not valid UTF-8 (byte 0x{raw[exc.start]:02x} at {exc.start}); send UTF-8 text"
            ) from exc
    return texts


def only(queries: list[str]) -> str:
    """The one query of a request to score."""
    if len(queries) != 1:
        raise InputError(f"query: has {len(queries)} elements; send one, and its texts as text")
    return queries[0]
