"""What goes into the client and what comes out."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt


class Item(dict[str, Any]):
    """One thing to encode: `Item(text="…")`, with an optional `id` that results carry back.

    Items are plain dicts; `{"text": "…"}` and a bare string do as well. Other keys are refused.
    """

    def __init__(self, text: str, *, id: str | None = None) -> None:
        super().__init__({"text": text} | ({"id": id} if id is not None else {}))


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
    """

    id: str
    dense: npt.NDArray[Any]
    sparse: SparseVector
    multivector: npt.NDArray[Any]
    muvera: npt.NDArray[Any]
    dense_scales: npt.NDArray[np.float32]
    multivector_scales: npt.NDArray[np.float32]
    muvera_scales: npt.NDArray[np.float32]
    token_count: int
    timing: Timing


class ScoreEntry(TypedDict):
    """`item_id`: the item's id, else "item-" and its position; `rank` 0: the most relevant."""

    item_id: str
    score: float
    rank: int


class ScoreResult(TypedDict, total=False):
    """`scores` are ranked, the most relevant first; `timing` is that of the slowest request."""

    model: str
    query_id: str
    scores: list[ScoreEntry]
    timing: Timing


class ScoreOptions(TypedDict, total=False):
    """Keyword arguments of `score`; `options` are further request parameters of the model.

    `timeout`: seconds for the whole call, retries included.
    """

    instruction: str
    lora: str
    profile: str
    options: Mapping[str, Any]
    timeout: float | None


class EncodeOptions(TypedDict, total=False):
    """Keyword arguments of `encode`; `options` are further request parameters of the model.

    `timeout`: seconds for the whole call, retries included.
    """

    output_types: Sequence[str]
    output_dtype: str
    instruction: str
    is_query: bool
    lora: str
    profile: str
    options: Mapping[str, Any]
    timeout: float | None
