"""What goes into the client and what comes out."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt


class Item(dict[str, Any]):
    """One thing to encode, score or extract from: `Item("…")`, `Item(image=…)`, with what the model reads of it.

    `image` is the bytes of a file, its path, a PIL image, or a uint8 array [height, width, 3]; `audio` is
    the bytes of a file, its path, or {"data": float32 or int16 array [samples] or [samples, channels], "sample_rate":
    16000}; `document` is bytes or a path. Results carry the `id` back. Items are plain dicts; `{"text": "…"}` and a
    bare string do as well. Other keys are refused.
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
    """Where the request's time went, in milliseconds; the same for all items of a request."""

    queue_ms: float
    preprocess_ms: float
    batch_wait_ms: float
    inference_ms: float
    postprocess_ms: float
    total_ms: float


class SparseVector(TypedDict):
    """`indices` int32 [entries], ascending; `values` float32 [entries]."""

    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


class EncodeResult(TypedDict, total=False):
    """One item's outputs; only those asked for are there.

    `dense` [dim], `multivector` [tokens, dim] and `muvera` [dim] are float32, or of the `output_dtype` asked for;
    `binary` and `ubinary` hold eight entries in a byte. `…_scales`, float32 [2] (multivector: [tokens, 2]), come with
    int8 and uint8 where the model's file asks for them: an entry q stands for scales[1] + scales[0] · q.
    An image that is a PDF has `pages` in place of outputs: a result of each, whose number from 1 is `page`.
    """

    id: str
    page: int
    pages: "list[EncodeResult]"
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
    """`item_id`: the item's id, else "item-" and its position; `rank` 0: the most relevant.

    `page`, from 1, if the item is a PDF. `truncated` is present, and true, if the model read only the item's beginning.
    """

    item_id: str
    score: float
    rank: int
    page: NotRequired[int]
    truncated: NotRequired[bool]


class ScoreResult(TypedDict, total=False):
    """`scores` are ranked, the most relevant first; `timing` is that of the slowest request.

    `token_count` is the sum over the items, with the query wherever it is read together with one.
    """

    model: str
    query_id: str
    scores: list[ScoreEntry]
    token_count: int
    timing: Timing


class Entity(TypedDict, total=False):
    """`start` and `end`, exclusive, are Unicode code points: `text` is the item's `text[start:end]`.

    What was read in an image has no place in a text, but a `bbox` where the model knows it: left, top, right and bottom
    in pixels of the upright image.
    """

    text: str
    label: str
    score: float
    start: int
    end: int
    bbox: list[float] | None


class Object(TypedDict):
    """Something seen in an image; `bbox` as in Entity."""

    label: str
    score: float
    bbox: list[float]


class Relation(TypedDict):
    """From `head` to `tail`, which are words of the item as in Entity."""

    head: str
    tail: str
    relation: str
    score: float
    head_start: int
    head_end: int
    tail_start: int
    tail_end: int


class Classification(TypedDict):
    """A label of the whole item."""

    label: str
    score: float


class ExtractResult(TypedDict, total=False):
    """What was found in one item; a model leaves empty what it does not look for.

    `entities` stand in the order of the text. `data` is filled after an `output_schema`. `token_count` is the sum over
    the pieces that a long item is read in. An image that is a PDF has `pages` in place of all that: a result of each.
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
    timing: Timing


class ScoreOptions(TypedDict, total=False):
    """Keyword arguments of `score`; `options` are further request parameters of the model.

    `lora` and `pages`: as in encode. `timeout`: seconds for the whole call, retries included.
    """

    instruction: str
    lora: str | None
    profile: str
    pages: str | None
    options: Mapping[str, Any]
    timeout: float | None


class EncodeOptions(TypedDict, total=False):
    """Keyword arguments of `encode`; `options` are further request parameters of the model.

    `lora`: the name of one of the model's LoRA adapters, over what the profile says; "" for none. `pages` of images
    that are PDFs: 1-3,8 or 5-. `timeout`: seconds for the whole call, retries included.
    """

    output_types: Sequence[str]
    output_dtype: str
    instruction: str
    is_query: bool
    lora: str | None
    profile: str
    pages: str | None
    options: Mapping[str, Any]
    timeout: float | None


class ExtractOptions(TypedDict, total=False):
    """Keyword arguments of `extract`; `options` are further request parameters of the model.

    `threshold`: the least score, from 0 to 1, of what is told, or one by label. `label_descriptions`: by label, what
    the model reads in its place. `flat_ner`: no entity lies in another. `multi_label`: the same words may have several
    labels. `output_schema`: what `data` shall look like, a JSON schema or a pydantic model. `lora`, `pages`: as in
    encode. `timeout`: seconds for the whole call, retries included.
    """

    threshold: float | Mapping[str, float] | None
    label_descriptions: Mapping[str, str]
    flat_ner: bool
    multi_label: bool
    output_schema: Any
    instruction: str
    lora: str | None
    profile: str
    pages: str | None
    options: Mapping[str, Any]
    timeout: float | None
