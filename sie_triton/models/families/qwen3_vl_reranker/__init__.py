"""Qwen3-VL-Reranker: scores documents, each a text, an image or both, for a query, by the next token's logits.

instruction, query, document → a prompt → tokens, and patches → Qwen3-VL → logits of yes and no → score

The prompt is the authors', with which the model was trained. Images are limited to the size in their code.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import IMAGE, INPUT_IDS, PIXELS, READ, TEXT, TRUNCATED, Tensor
from sie_triton.models.families.base import Options
from sie_triton.models.families.qwen3_vl_embedding import Qwen3VLEmbedding, plan_of
from sie_triton.models.families.shared.pages import VisionLanguageFamily
from sie_triton.models.families.shared.pages.chat_reader import (
    AFTER,
    BEFORE,
    PICTURE,
    ChatReader,
    ConversationProcessor,
    check_text,
)
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.prompt import Prompted
from sie_triton.models.inputs.tokenizer import packed_ids

PAIR_SIZES = Tensor(
    "pair_sizes", "INT32", (-1, 4), "[n, 4] height and width of the query's image and of the item's; 0: none", "", 0
)


@dataclass(frozen=True)
class Qwen3VLRerankerOptions(Options):
    """Options of Qwen3-VL-Reranker. `default_instruction` is for requests and profiles without an instruction."""

    default_instruction: str = ""


class Qwen3VLReranker(VisionLanguageFamily):
    """The family. It recognises no directory, since no file identifies it: a model file must name it."""

    model_types = Qwen3VLEmbedding.model_types
    usual_longest = Qwen3VLEmbedding.usual_longest
    scores_pairs = True
    features = (READ, INPUT_IDS, PIXELS, PAIR_SIZES)
    options = Qwen3VLRerankerOptions
    takes_loras = True
    reference_adapters = ("qwen3_vl_reranker:Qwen3VLRerankerAdapter",)


INSTRUCTION = "Given a search query, retrieve relevant candidates that answer the query."
JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)


class PairProcessor(ConversationProcessor):
    def __init__(self, reader: ChatReader, instruction: str) -> None:
        super().__init__(reader)
        self._instruction = instruction or INSTRUCTION

    def frame(self, part: Part) -> Frame:
        """Return instruction and query. The query's image is prepared once, with the first document."""
        given, query = part.instruction or self._instruction, part.query.get(TEXT.name, "")
        check_text(given, "parameter instruction")
        check_text(query, "query")
        return Prompted(lambda: (given, self._reader.prepared(part.query)), len(given) + len(query))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        for _, item in framed:
            check_text(item.get(TEXT.name, ""), "items", "a text ")
        pairs = [[query.get(IMAGE.name), item.get(IMAGE.name)] for (_, query), item in framed]
        images = [[image for image in pair if image is not None] for pair in pairs]
        shorten = self._reader.beginning
        asked = [question(told, shown(query, shorten), shown(item, shorten)) for (told, query), item in framed]
        ids, cut = self._reader.tokens(asked, images)
        sizes = [[(0, 0) if image is None else image.shape[:2] for image in pair] for pair in pairs]
        lengths = np.array([sum(image.size for image in of) for of in images], np.int32)
        flat = [image.reshape(-1) for of in images for image in of]
        return {
            READ.name: Ragged(self._reader.read(ids, images)),
            TRUNCATED.name: Ragged(np.array(cut)),
            **packed_ids(ids),
            PIXELS.name: Ragged(np.concatenate(flat) if flat else np.empty(0, np.uint8), lengths),
            PAIR_SIZES.name: Ragged(np.array(sizes, np.int32).reshape(-1, 4)),
        }

    def page(self) -> Features:
        """Return the features of one white page, with a query of one word."""
        return self.encode([((INSTRUCTION, {TEXT.name: "page"}), self.white_page)])


def question(instruction: str, query: str, item: str) -> str:
    asked = f"<Instruct>: {instruction}<Query>:{query}\n<Document>:{item}"
    return f"{BEFORE.format(JUDGE)}{asked}{AFTER}"


def shown(item: Any, shorten: Callable[[str], str]) -> str:
    """Return an item as it is written in the prompt.

    >>> shown({"text": "ab"}, lambda text: text[:1]), shown({"text": ""}, str)
    ('a', 'NULL')
    """
    return f"{PICTURE if IMAGE.name in item else ''}{shorten(item.get(TEXT.name, ''))}" or "NULL"


def load_processor(spec: ModelSpec, directory: Path) -> PairProcessor:
    files = Qwen3VLEmbedding.read(directory)
    longest = min(spec.max_sequence_length, files.longest)
    reader = ChatReader(files, plan_of(files), longest, spec.runtime)
    return PairProcessor(reader, Qwen3VLRerankerOptions.of(spec).default_instruction)
