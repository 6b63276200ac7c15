"""Types of the client's arguments and results."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt


class Item(dict[str, Any]):
    """Input to encode, score or extract from: `Item("…")`, `Item(image=…)`, with the kinds that the model reads.

    `image` is the bytes of a file, its path, a PIL image, or a uint8 array [height, width, 3]. `audio` is the bytes of
    a file, its path, or {"data": float32 or int16 array [samples] or [samples, channels], "sample_rate": 16000}.
    `document` is bytes or a path. The result contains the `id`. Items are plain dicts; `{"text": "…"}` and a string are
    equivalent. Other keys are refused.
    """

    def __init__(
        self,
        text: str | None = None,
        *,
        image: Any = None,
        audio: Any = None,
        document: Any = None,
        id: str | None = None,
    ) -> None:
        given = {"text": text, "image": image, "audio": audio, "document": document, "id": id}
        super().__init__({key: value for key, value in given.items() if value is not None})


ItemLike = str | Mapping[str, Any]


class Timing(TypedDict):
    """Times of a request in milliseconds, the same for all its items. `loading_ms` is the wait for weights."""

    queue_ms: float
    preprocess_ms: float
    batch_wait_ms: float
    inference_ms: float
    postprocess_ms: float
    total_ms: float
    loading_ms: float


class SparseVector(TypedDict):
    """int32 [entries], ascending, and float32 [entries]."""

    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


class EncodeResult(TypedDict, total=False):
    """The requested outputs of one item.

    `dense` [dim], `multivector` [tokens, dim] and `muvera` [dim] are float32, or of the requested `output_dtype`.
    `…_scales`, float32 [2] (multivector: [tokens, 2]), come with int8 and uint8 if the model file says so. A PDF has
    `pages` instead of outputs: one result per page, with its number from 1 as `page`; a text that was split has
    `chunks`, one for each `text[start:end]`. `truncated`, always True, is present if the model read only the beginning
    of the text. `token_count` includes the prompt.
    """

    id: str
    page: int
    pages: "list[EncodeResult]"
    start: int
    end: int
    chunks: "list[EncodeResult]"
    dense: npt.NDArray[Any]
    sparse: SparseVector
    multivector: npt.NDArray[Any]
    muvera: npt.NDArray[Any]
    dense_scales: npt.NDArray[np.float32]
    multivector_scales: npt.NDArray[np.float32]
    muvera_scales: npt.NDArray[np.float32]
    token_count: int
    truncated: bool
    timing: Timing


class ScoreEntry(TypedDict):
    """Score of one item. `item_id` is the item's id, else "item-" and its position. `rank` 0 is the most relevant.

    `page`, from 1, is that of a PDF. `truncated` is as in EncodeResult, also of a query that is read with the item.
    """

    item_id: str
    score: float
    rank: int
    page: NotRequired[int]
    truncated: NotRequired[bool]


class ScoreResult(TypedDict, total=False):
    """Ranked `scores`, the most relevant first. `timing` is that of the slowest request.

    `token_count` is the sum over the items, with the query for each item if the model reads both together.
    """

    model: str
    query_id: str
    scores: list[ScoreEntry]
    token_count: int
    timing: Timing


class Entity(TypedDict, total=False):
    """Entity in a text, or words read in an image.

    `text` is the item's `text[start:end]`, in Unicode code points. Words in an image have a `bbox` instead, if the
    model knows it: left, top, right and bottom, in pixels of the upright image.
    """

    text: str
    label: str
    score: float
    start: int
    end: int
    bbox: list[float] | None


class Object(TypedDict):
    """Object in an image; `bbox` as in Entity."""

    label: str
    score: float
    bbox: list[float]


class Relation(TypedDict):
    """Relation from `head` to `tail`, both words of the item; their `start` and `end` are as in Entity."""

    head: str
    tail: str
    relation: str
    score: float
    head_start: int
    head_end: int
    tail_start: int
    tail_end: int


class Classification(TypedDict):
    """Label of a whole item."""

    label: str
    score: float


class ExtractResult(TypedDict, total=False):
    """Findings in one item; kinds that a model does not extract are empty.

    `entities` are in the order of the text. `data` follows the `output_schema`. `token_count` is
    the sum over the pieces of a long text; families of this package never set `truncated`. A PDF has `pages`, as in
    EncodeResult.
    """

    id: str
    page: int
    pages: "list[ExtractResult]"
    entities: list[Entity]
    relations: list[Relation]
    classifications: list[Classification]
    objects: list[Object]
    data: dict[str, Any]
    token_count: int
    truncated: bool
    timing: Timing


class ScoreOptions(TypedDict, total=False):
    """Keyword arguments of `score`, which the other verbs have too.

    `lora`: name of the LoRA adapter to apply; overrides the profile's; "" applies none. `pages`: pages of images that
    are PDFs, such as 1-3,8 or 5-. `options`: further request parameters of the model. `timeout`: seconds for the whole
    call, including retries.
    """

    instruction: str
    lora: str | None
    profile: str
    pages: str | None
    options: Mapping[str, Any]
    timeout: float | None


class EncodeOptions(ScoreOptions, total=False):
    """Keyword arguments of `encode`, besides those of `score`."""

    output_types: Sequence[str]
    output_dtype: str
    is_query: bool


class ExtractOptions(ScoreOptions, total=False):
    """Keyword arguments of `extract`, besides those of `score`.

    `threshold`: minimum score of a finding, from 0 to 1, or a mapping by label. `label_descriptions`: texts that the
    model reads instead of the labels, by label. `flat_ner`: entities do not contain other entities. `multi_label`: the
    same words may have several labels. `output_schema`: structure of `data`, as a JSON schema or a pydantic model.
    """

    threshold: float | Mapping[str, float] | None
    label_descriptions: Mapping[str, str]
    flat_ner: bool
    multi_label: bool
    output_schema: Any
