"""Tensors of the contract and of the kinds of input; a family declares its other tensors.

Each name is written once. `n` is the number of items in a request, -1 a dimension that varies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

NUMPY_DTYPES = {
    "FP32": np.float32,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "BOOL": np.bool_,
    "BYTES": np.object_,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor: Triton's wire dtype and the dims that a client sees."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    doc: str = field(default="", compare=False)
    # Of a ragged tensor, with the rows of all items one after another: the tensor with the number of rows per item
    lengths: str = ""
    minimum: int | None = None  # of the integers that a model reads
    maximum: int | None = None
    optional: bool = False  # a client may omit it
    is_large: bool = False  # passes between two steps by itself; all others share a message (stages.message)

    def empty(self) -> npt.NDArray[Any]:
        """Return the empty array that stands for an output that the request did not select."""
        return np.zeros([0, *(max(0, dim) for dim in self.dims[1:])], NUMPY_DTYPES[self.dtype])


TEXT = Tensor("text", "BYTES", (-1,), "[n] UTF-8 texts; an empty one is none if the item has something else")
IMAGE = Tensor("image", "BYTES", (-1,), "[n] image files; empty: none")
AUDIO = Tensor("audio", "BYTES", (-1,), "[n] audio files; empty: none")
DOCUMENT = Tensor("document", "BYTES", (-1,), "[n] document files; empty: none")

# Kind of input → tensor of the items.
ITEMS: Mapping[str, Tensor] = {"text": TEXT, "image": IMAGE, "audio": AUDIO, "document": DOCUMENT}

QUERY = Tensor("query", "BYTES", (-1,), "[1] UTF-8 text to score the items against")
QUERY_IMAGE = Tensor("query_image", "BYTES", (-1,), "[1] image file to score the items against", optional=True)
LABELS = Tensor("labels", "BYTES", (-1,), "[k] UTF-8 labels to look for", optional=True)
ENTITIES = Tensor("entities", "BYTES", (-1,), "[n] JSON list of the known entities of each text", optional=True)

SPARSE_LENGTHS = Tensor("sparse_lengths", "INT32", (-1,), "[n] entries per item")
MULTIVECTOR_LENGTHS = Tensor("multivector_lengths", "INT32", (-1,), "[n] rows per item")
_OF_SPARSE, _OF_MULTIVECTOR = SPARSE_LENGTHS.name, MULTIVECTOR_LENGTHS.name

DENSE = Tensor("dense", "FP32", (-1, -1), "[n, dim]")
SPARSE_INDICES = Tensor("sparse_indices", "INT32", (-1,), "[nnz] token ids, ascending within an item", _OF_SPARSE)
SPARSE_VALUES = Tensor("sparse_values", "FP32", (-1,), "[nnz]", _OF_SPARSE)
MULTIVECTOR = Tensor("multivector", "FP32", (-1, -1), "[tokens, dim]", _OF_MULTIVECTOR)
MUVERA = Tensor("muvera", "FP32", (-1, -1), "[n, fde] fixed-dimensional encoding of the multivector")
DENSE_QUANTIZED = Tensor("dense_quantized", "UINT8", (-1, -1), "[n, bytes]")
MULTIVECTOR_QUANTIZED = Tensor("multivector_quantized", "UINT8", (-1, -1), "[tokens, bytes]", _OF_MULTIVECTOR)
MUVERA_QUANTIZED = Tensor("muvera_quantized", "UINT8", (-1, -1), "[n, bytes]")
DENSE_SCALES = Tensor("dense_scales", "FP32", (-1, -1), "[n, 2] step and offset of int8 and uint8")
MULTIVECTOR_SCALES = Tensor("multivector_scales", "FP32", (-1, -1), "[tokens, 2] step and offset", _OF_MULTIVECTOR)
MUVERA_SCALES = Tensor("muvera_scales", "FP32", (-1, -1), "[n, 2] step and offset")
SCORES = Tensor("scores", "FP32", (-1,), "[n] one score per item")
EXTRACTION = Tensor("extraction", "BYTES", (-1,), "[n] one JSON object per item")
FOUND_LENGTHS = Tensor("found_lengths", "INT32", (-1,), "[n] bytes of findings per item")
FOUND = Tensor("found", "UINT8", (-1,), "[bytes] findings as JSON, without their words", FOUND_LENGTHS.name)
NUM_PIECES = Tensor("num_pieces", "INT32", (-1,), "[n] pieces per item")
NUM_PAGES = Tensor("num_pages", "INT32", (-1,), "[items sent] rows per PDF; 0: not a PDF, one row")
PAGE_NUMBERS = Tensor("page_numbers", "INT32", (-1,), "[pages] page numbers, from 1", NUM_PAGES.name)
CHUNKS = Tensor("chunks", "INT32", (-1, 3), "[rows, 3] item, start and end of each chunk; empty without chunk_tokens")
TOKEN_COUNT = Tensor("token_count", "INT32", (-1,), "[n] tokens after truncation")
TRUNCATED = Tensor("truncated", "BOOL", (-1,), "[n] true if the model read only the beginning of the text")
TIMING_MS = Tensor("timing_ms", "FP32", (-1,), "[7] milliseconds, as below")

TIMING_FIELDS = ("queue", "preprocess", "batch_wait", "inference", "postprocess", "total", "loading")

# Features of texts. Nothing is padded between the steps of an ensemble.
LENGTHS = Tensor("lengths", "INT32", (-1,), "[n] tokens per item")
INPUT_IDS = Tensor("input_ids", "INT32", (-1,), "[tokens] token ids of all items", LENGTHS.name, 0)
TOKEN_TYPE_IDS = Tensor(
    "token_type_ids", "INT32", (-1,), "[tokens] index of the text of a pair, 0 or 1", LENGTHS.name, 0, 1
)
PROMPT_TOKENS = Tensor("prompt_tokens", "INT32", (-1,), "[n] leading tokens per item that pooling leaves out", "", 0)

# Length of each item, for models that read items in several ways.
READ = Tensor(
    "read",
    "INT32",
    (-1,),
    "[n] length of each item as the model reads it: tokens of a text, patches of an image",
    "",
    1,
)

# Features of images, as large as the model reads them.
PIXEL_LENGTHS = Tensor("pixel_lengths", "INT32", (-1,), "[n] bytes of pixels per item")
PIXELS = Tensor(
    "pixels",
    "UINT8",
    (-1,),
    "[bytes] pixels of all images, row by row: red, green, blue",
    PIXEL_LENGTHS.name,
    is_large=True,
)
IMAGE_SIZES = Tensor("image_sizes", "INT32", (-1, 2), "[n, 2] height and width in pixels; 0: no image", "", 0)
ORIGINAL_SIZES = Tensor(
    "original_sizes", "INT32", (-1, 2), "[n, 2] height and width of the image as sent, upright", "", 1
)

# Features of sounds.
MEL_LENGTHS = Tensor("mel_lengths", "INT32", (-1,), "[n] numbers in the spectrograms of each item")
MEL = Tensor(
    "mel",
    "FP32",
    (-1,),
    "[numbers] spectrograms of all items, frame by frame: decibels per mel band",
    MEL_LENGTHS.name,
    is_large=True,
)

# Features of texts that are read in pieces, each in a row of its own, and of the words and labels in them.
PIECE = Tensor("piece", "INT32", (-1,), "[pieces] index of the piece in its item, from 0", "", 0)
WORD_LENGTHS = Tensor("word_lengths", "INT32", (-1,), "[pieces] words per piece")
WORD_TOKENS = Tensor(
    "word_tokens", "INT32", (-1,), "[words] index in the piece of the word's token", WORD_LENGTHS.name, 0
)
WORD_SPANS = Tensor("word_spans", "INT32", (-1, 2), "[words, 2] start and end in the text", WORD_LENGTHS.name, 0)
LABEL_LENGTHS = Tensor("label_lengths", "INT32", (-1,), "[pieces] labels per piece")
LABEL_TOKENS = Tensor(
    "label_tokens", "INT32", (-1,), "[labels] index in the piece of the label's token", LABEL_LENGTHS.name, 0
)
LABEL_THRESHOLDS = Tensor(
    "label_thresholds", "FP32", (-1,), "[labels] NaN: the request's threshold", LABEL_LENGTHS.name
)

MESSAGE = Tensor("message", "UINT8", (-1,), "[bytes] what a step sends to the next, sealed; see stages.message")


def with_lengths(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return `tensors`, followed by the lengths tensors of the ragged ones, each tensor once."""
    found = list(tensors)
    named = {tensor.name for tensor in found}
    missing = dict.fromkeys(each.lengths for each in found if each.lengths and each.lengths not in named)
    return (*dict.fromkeys(found), *(Tensor(name, "INT32", (-1,), "[n] rows per item") for name in missing))


def lengths_of(tensors: Iterable[Tensor]) -> Mapping[str, str]:
    """Map the name of each ragged tensor to the name of its lengths."""
    return {tensor.name: tensor.lengths for tensor in tensors if tensor.lengths}
