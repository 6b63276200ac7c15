"""Every tensor, its name typed once. `n` is the number of items in a request, -1 a dimension that only it knows."""

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
    """A named tensor: Triton's wire dtype and the dims a client sees.

    A ragged one holds the rows of all items one after another; `lengths` names the tensor that says how many each item
    has. Of integers that a model reads, `minimum` and `maximum` are what it can. A client may leave out what is
    `optional`.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    doc: str = field(default="", compare=False)
    lengths: str = ""
    minimum: int | None = None
    maximum: int | None = None
    optional: bool = False

    def empty(self) -> npt.NDArray[Any]:
        """What stands for an output that was not asked for."""
        return np.zeros([0, *(max(0, dim) for dim in self.dims[1:])], NUMPY_DTYPES[self.dtype])


TEXT = Tensor("text", "BYTES", (-1,), "[n] UTF-8 text; an empty element is an empty text")
IMAGE = Tensor("image", "BYTES", (-1,), "[n] encoded image file; empty: no image in this item")
AUDIO = Tensor("audio", "BYTES", (-1,), "[n] encoded audio file; empty: no audio in this item")
DOCUMENT = Tensor("document", "BYTES", (-1,), "[n] document file; empty: none in this item")

# What a client sends of an item, by the kind of input.
ITEMS: Mapping[str, Tensor] = {"text": TEXT, "image": IMAGE, "audio": AUDIO, "document": DOCUMENT}

QUERY = Tensor("query", "BYTES", (-1,), "[1] the text that items are scored against, UTF-8")
QUERY_IMAGE = Tensor("query_image", "BYTES", (-1,), "[1] the image that items are scored against", optional=True)
LABELS = Tensor("labels", "BYTES", (-1,), "[k] what to look for, UTF-8", optional=True)
ENTITIES = Tensor("entities", "BYTES", (-1,), "[n] JSON list of each text's known entities", optional=True)

SPARSE_LENGTHS = Tensor("sparse_lengths", "INT32", (-1,), "[n] entries of each item")
MULTIVECTOR_LENGTHS = Tensor("multivector_lengths", "INT32", (-1,), "[n] rows of each item")
_OF_SPARSE, _OF_MULTIVECTOR = SPARSE_LENGTHS.name, MULTIVECTOR_LENGTHS.name

DENSE = Tensor("dense", "FP32", (-1, -1), "[n, dim]")
SPARSE_INDICES = Tensor("sparse_indices", "INT32", (-1,), "[nnz] token ids, ascending in an item", _OF_SPARSE)
SPARSE_VALUES = Tensor("sparse_values", "FP32", (-1,), "[nnz]", _OF_SPARSE)
MULTIVECTOR = Tensor("multivector", "FP32", (-1, -1), "[tokens, dim]", _OF_MULTIVECTOR)
MUVERA = Tensor("muvera", "FP32", (-1, -1), "[n, fde]")
DENSE_QUANTIZED = Tensor("dense_quantized", "UINT8", (-1, -1), "[n, bytes]")
MULTIVECTOR_QUANTIZED = Tensor("multivector_quantized", "UINT8", (-1, -1), "[tokens, bytes]", _OF_MULTIVECTOR)
MUVERA_QUANTIZED = Tensor("muvera_quantized", "UINT8", (-1, -1), "[n, bytes]")
DENSE_SCALES = Tensor("dense_scales", "FP32", (-1, -1), "[n, 2] step and offset of int8 and uint8")
MULTIVECTOR_SCALES = Tensor("multivector_scales", "FP32", (-1, -1), "[tokens, 2] step and offset", _OF_MULTIVECTOR)
MUVERA_SCALES = Tensor("muvera_scales", "FP32", (-1, -1), "[n, 2] step and offset")
SCORES = Tensor("scores", "FP32", (-1,), "[n] one score per item")
EXTRACTION = Tensor("extraction", "BYTES", (-1,), "[n] one JSON object per item")
FOUND_LENGTHS = Tensor("found_lengths", "INT32", (-1,), "[n] bytes of each item")
FOUND = Tensor("found", "UINT8", (-1,), "[bytes] what was found, without its words; see findings", FOUND_LENGTHS.name)
NUM_PIECES = Tensor("num_pieces", "INT32", (-1,), "[n] pieces that each item was read in")
NUM_PAGES = Tensor("num_pages", "INT32", (-1,), "[items sent] rows of each that is a PDF; 0: no PDF, one row")
PAGE_NUMBERS = Tensor("page_numbers", "INT32", (-1,), "[pages] which page each is, from 1", NUM_PAGES.name)
TOKEN_COUNT = Tensor("token_count", "INT32", (-1,), "[n] tokens after truncation")
TRUNCATED = Tensor("truncated", "BOOL", (-1,), "[n] true if the model read only the beginning of the text")
TIMING_MS = Tensor("timing_ms", "FP32", (-1,), "[6] in the order of TIMING_FIELDS")

TIMING_FIELDS = ("queue", "preprocess", "batch_wait", "inference", "postprocess", "total")

# Features of texts. Nothing is padded between the steps of an ensemble.
LENGTHS = Tensor("lengths", "INT32", (-1,), "[n] tokens of each item")
INPUT_IDS = Tensor("input_ids", "INT32", (-1,), "[tokens] of all items, one after another", LENGTHS.name, 0)
TOKEN_TYPE_IDS = Tensor(
    "token_type_ids", "INT32", (-1,), "[tokens] which text of a pair each belongs to", LENGTHS.name, 0, 1
)
PROMPT_TOKENS = Tensor("prompt_tokens", "INT32", (-1,), "[n] leading tokens of each item kept out of pooling", "", 0)

# Of items that are read in several ways: how long each is.
READ = Tensor(
    "read", "INT32", (-1,), "[n] what the model reads of each item: tokens of text, patches of an image", "", 1
)

# Features of images, as large as the model reads them.
PIXEL_LENGTHS = Tensor("pixel_lengths", "INT32", (-1,), "[n] bytes of each item's image")
PIXELS = Tensor("pixels", "UINT8", (-1,), "[bytes] of all images, row by row: red, green, blue", PIXEL_LENGTHS.name)
IMAGE_SIZES = Tensor("image_sizes", "INT32", (-1, 2), "[n, 2] height and width in pixels; 0: no image", "", 0)
ORIGINAL_SIZES = Tensor("original_sizes", "INT32", (-1, 2), "[n, 2] height and width of the upright image sent", "", 1)

# Features of sounds.
MEL_LENGTHS = Tensor("mel_lengths", "INT32", (-1,), "[n] numbers of each item's spectrograms")
MEL = Tensor(
    "mel", "FP32", (-1,), "[numbers] of all spectrograms, frame by frame: decibels by mel band", MEL_LENGTHS.name
)

# Features of texts that are read in pieces, each by itself, and of the words and labels in them.
PIECE = Tensor("piece", "INT32", (-1,), "[pieces] which of its item each is, from 0", "", 0)
WORD_LENGTHS = Tensor("word_lengths", "INT32", (-1,), "[pieces] words of each")
WORD_TOKENS = Tensor("word_tokens", "INT32", (-1,), "[words] first token of each, in its piece", WORD_LENGTHS.name, 0)
WORD_SPANS = Tensor("word_spans", "INT32", (-1, 2), "[words, 2] start and end in the text", WORD_LENGTHS.name, 0)
LABEL_LENGTHS = Tensor("label_lengths", "INT32", (-1,), "[pieces] labels of each")
LABEL_TOKENS = Tensor("label_tokens", "INT32", (-1,), "[labels] token of each, in its piece", LABEL_LENGTHS.name, 0)
LABEL_THRESHOLDS = Tensor("label_thresholds", "FP32", (-1,), "[labels] NaN: that of the request", LABEL_LENGTHS.name)

SEPARATOR = Tensor("separator", "INT32", (-1,), "[pieces] token of each behind its labels", "", 0)

# The same of texts that are read with one label after another.
LABEL = Tensor("label", "INT32", (-1,), "[pieces] the label that each is read with", "", 0)

# The same of passages whose tokens are judged one by one.
PASSAGE_LENGTHS = Tensor("passage_lengths", "INT32", (-1,), "[pieces] tokens of each that are of the passage")
_OF_PASSAGE = PASSAGE_LENGTHS.name
PASSAGE = Tensor(
    "passage",
    "INT32",
    (-1, 4),
    "[tokens, 4] place in its piece, number, start and end in the text",
    _OF_PASSAGE,
    0,
)

# What forward passes find in a piece.
SPAN_LENGTHS = Tensor("span_lengths", "INT32", (-1,), "[pieces] spans of each")
SPANS = Tensor("spans", "INT32", (-1, 3), "[spans, 3] start and end in the text, and label", SPAN_LENGTHS.name)
SPAN_SCORES = Tensor("span_scores", "FP32", (-1,), "[spans]", SPAN_LENGTHS.name)

# What forward passes find in an image.
OBJECT_LENGTHS = Tensor("object_lengths", "INT32", (-1,), "[n] objects of each image")
_OF_OBJECTS = OBJECT_LENGTHS.name
BOXES = Tensor("boxes", "FP32", (-1, 4), "[objects, 4] left, top, right, bottom in pixels", _OF_OBJECTS)
OBJECT_LABELS = Tensor("object_labels", "INT32", (-1,), "[objects]", _OF_OBJECTS)
OBJECT_SCORES = Tensor("object_scores", "FP32", (-1,), "[objects]", _OF_OBJECTS)

KEEP_SCORES = Tensor("keep_scores", "FP32", (-1,), "[tokens] of the passage", _OF_PASSAGE)
CLASS_LENGTHS = Tensor("class_lengths", "INT32", (-1,), "[pieces] classes of each")
CLASS_LOGITS = Tensor("class_logits", "FP32", (-1,), "[classes]", CLASS_LENGTHS.name)
IS_MULTI_LABEL = Tensor("is_multi_label", "INT32", (-1,), "[pieces] 1: its classes do not exclude each other")
NAME_LENGTHS = Tensor("name_lengths", "INT32", (-1,), "[pieces] bytes of each")
CLASS_NAMES = Tensor("class_names", "UINT8", (-1,), "[bytes] JSON list, in each text's first piece", NAME_LENGTHS.name)

COST = Tensor("cost", "INT32", (-1,), "[1] of the whole request; read by the admission hook")
CONTEXT = Tensor("context", "UINT8", (-1,), "what is known of the request, sealed; see stages.context")


def with_lengths(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """`tensors`, and behind them those that say how long the ragged ones are; each once."""
    found = list(tensors)
    named = {tensor.name for tensor in found}
    missing = dict.fromkeys(each.lengths for each in found if each.lengths and each.lengths not in named)
    return (*dict.fromkeys(found), *(Tensor(name, "INT32", (-1,), "[n] rows of each item") for name in missing))


def lengths_of(tensors: Iterable[Tensor]) -> Mapping[str, str]:
    """Name of each ragged tensor → name of its lengths."""
    return {tensor.name: tensor.lengths for tensor in tensors if tensor.lengths}
