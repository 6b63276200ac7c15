"""The public contract: every tensor and request parameter, its name typed once.

Render writes these into Triton's model configurations, the stages read and write them, the
client sends and parses them. `n` is the number of items in a request, -1 a dimension that only
the request knows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.errors import InputError

ParameterValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor: Triton's wire dtype and the dims a client sees."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    doc: str = field(default="", compare=False)

    def empty(self) -> npt.NDArray[Any]:
        """What stands for an output that was not asked for."""
        return np.zeros([0] * len(self.dims), NUMPY_DTYPES[self.dtype])


NUMPY_DTYPES = {"FP32": np.float32, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8}

TEXT = Tensor("text", "BYTES", (-1,), "[n] UTF-8 text; an empty element is an empty text")
IMAGE = Tensor("image", "BYTES", (-1,), "[n] encoded image file; empty: no image in this item")
AUDIO = Tensor("audio", "BYTES", (-1,), "[n] encoded audio file; empty: no audio in this item")
DOCUMENT = Tensor("document", "BYTES", (-1,), "[n] document file; empty: none in this item")
QUERY = Tensor("query", "BYTES", (-1,), "[1] the text that items are scored against, UTF-8")
QUERY_IMAGE = Tensor("query_image", "BYTES", (-1,), "[1] the image that items are scored against")
LABELS = Tensor("labels", "BYTES", (-1,), "[k] labels to extract")
ENTITIES = Tensor("entities", "BYTES", (-1,), "[n] JSON list of entities, for relation models")

DENSE = Tensor("dense", "FP32", (-1, -1), "[n, dim]")
SPARSE_INDICES = Tensor("sparse_indices", "INT32", (-1,), "[nnz] token ids, ascending in an item")
SPARSE_VALUES = Tensor("sparse_values", "FP32", (-1,), "[nnz]")
SPARSE_LENGTHS = Tensor("sparse_lengths", "INT32", (-1,), "[n] entries of each item")
MULTIVECTOR = Tensor("multivector", "FP32", (-1, -1), "[tokens, dim]")
MULTIVECTOR_LENGTHS = Tensor("multivector_lengths", "INT32", (-1,), "[n] rows of each item")
MUVERA = Tensor("muvera", "FP32", (-1, -1), "[n, fde]")
DENSE_QUANTIZED = Tensor("dense_quantized", "UINT8", (-1, -1), "[n, bytes]")
MULTIVECTOR_QUANTIZED = Tensor("multivector_quantized", "UINT8", (-1, -1), "[tokens, bytes]")
MUVERA_QUANTIZED = Tensor("muvera_quantized", "UINT8", (-1, -1), "[n, bytes]")
DENSE_SCALES = Tensor("dense_scales", "FP32", (-1, -1), "[n, 2] step and offset of int8 and uint8")
MULTIVECTOR_SCALES = Tensor("multivector_scales", "FP32", (-1, -1), "[tokens, 2] step and offset")
MUVERA_SCALES = Tensor("muvera_scales", "FP32", (-1, -1), "[n, 2] step and offset")
SCORES = Tensor("scores", "FP32", (-1,), "[n] one score per item")
EXTRACTION = Tensor("extraction", "BYTES", (-1,), "[n] one JSON object per item")
TOKEN_COUNT = Tensor("token_count", "INT32", (-1,), "[n] tokens after truncation")
TIMING_MS = Tensor("timing_ms", "FP32", (-1,), "[6] in the order of TIMING_FIELDS")

TIMING_FIELDS = ("queue", "preprocess", "batch_wait", "inference", "postprocess", "total")

TASKS = ("encode", "score", "extract")

INPUTS: Mapping[str, tuple[Tensor, ...]] = {
    "encode": (TEXT, IMAGE, AUDIO, DOCUMENT),
    "score": (QUERY, QUERY_IMAGE, TEXT, IMAGE),
    "extract": (TEXT, IMAGE, AUDIO, DOCUMENT, LABELS, ENTITIES),
}

ENCODE_OUTPUTS: Mapping[str, tuple[Tensor, ...]] = {
    "dense": (DENSE,),
    "sparse": (SPARSE_INDICES, SPARSE_VALUES, SPARSE_LENGTHS),
    "multivector": (MULTIVECTOR, MULTIVECTOR_LENGTHS),
    "muvera": (MUVERA,),
}
QUANTIZED: Mapping[str, Tensor] = {
    "dense": DENSE_QUANTIZED,
    "multivector": MULTIVECTOR_QUANTIZED,
    "muvera": MUVERA_QUANTIZED,
}

# Where a model declares them: a quantised entry q stands for offset + step · q.
SCALES: Mapping[str, Tensor] = {"dense": DENSE_SCALES, "multivector": MULTIVECTOR_SCALES, "muvera": MUVERA_SCALES}
SCALED_DTYPES = ("int8", "uint8")

# Ways to score a query's outputs against those of texts → what they are made of; see transforms.similarity.
SCORE_MODES: Mapping[str, tuple[str, ...]] = {
    "dense": ("dense",),
    "sparse": ("sparse",),
    "colbert": ("multivector",),
    "hybrid": ("dense", "sparse", "multivector"),
    "maxsim": ("multivector",),
}

# Tensors that hold the rows of all items one after another → the tensor that says how many each item has.
RAGGED: Mapping[str, str] = {
    SPARSE_INDICES.name: SPARSE_LENGTHS.name,
    SPARSE_VALUES.name: SPARSE_LENGTHS.name,
    MULTIVECTOR.name: MULTIVECTOR_LENGTHS.name,
    MULTIVECTOR_SCALES.name: MULTIVECTOR_LENGTHS.name,
}

# Between the steps of an ensemble. Nothing is padded: a feature is one flat array, and
# `lengths` says how many of its entries belong to each item.
INPUT_IDS = Tensor("input_ids", "INT32", (-1,), "[tokens] of all items, one after another")
LENGTHS = Tensor("lengths", "INT32", (-1,), "[n] tokens of each item")
TOKEN_TYPE_IDS = Tensor("token_type_ids", "INT32", (-1,), "[tokens] which text of a pair each belongs to")
QUERY_IDS = Tensor("query_ids", "INT32", (-1,), "[k] tokens of the text to score against; none: not scored")
PROMPT_TOKENS = Tensor(
    "prompt_tokens", "INT32", (-1,), "[1] leading tokens of each text kept out of pooling; [2]: and the query's"
)
COST = Tensor("cost", "INT32", (-1,), "[1] of the whole request; read by the admission hook")
STAMPS = Tensor("stamps", "INT64", (-1,), "monotonic ns, and the seal; see stages.timing")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A request parameter: its type and the values that are allowed.

    `is_list` marks a comma-separated string whose members must each be in `choices`.
    """

    name: str
    type: type[ParameterValue]
    tasks: tuple[str, ...] = TASKS
    choices: tuple[str, ...] = ()
    is_list: bool = False
    minimum: int | None = None
    maximum: int | None = None
    max_characters: int | None = None
    doc: str = field(default="", compare=False)

    def check(self, value: Any) -> ParameterValue:
        """Return `value`, or raise InputError naming the parameter and what is allowed."""
        if not (self._has_type(value) and self._is_choice(value) and self._in_range(value) and self._is_short(value)):
            raise InputError(f"parameter {self.name}: {shown(value)} is not allowed; give {self.allowed()}")
        return self.type(value)

    def allowed(self) -> str:
        """What is allowed, in words.

        >>> Parameter("dimensions", int, minimum=1, maximum=384).allowed()
        'an integer from 1 to 384'
        """
        if self.choices:
            return f"{'a comma-separated list of' if self.is_list else 'one of'} {', '.join(self.choices)}"
        noun = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}[self.type]
        if self.minimum is not None and self.maximum is not None:
            return f"{noun} from {self.minimum} to {self.maximum}"
        return f"{noun} of at most {self.max_characters} characters" if self.max_characters is not None else noun

    def _has_type(self, value: Any) -> bool:
        return type(value) is self.type or (self.type is float and type(value) is int)

    def _is_choice(self, value: Any) -> bool:
        members = value.split(",") if self.is_list else [value]
        return not self.choices or all(member in self.choices for member in members)

    def _is_short(self, value: Any) -> bool:
        return self.max_characters is None or len(value) <= self.max_characters

    def _in_range(self, value: Any) -> bool:
        above = self.minimum is None or value >= self.minimum
        return above and (self.maximum is None or bool(value <= self.maximum))


def shown(value: Any, max_characters: int = 80) -> str:
    """
    >>> shown("x" * 100, 8)
    "'xxxxxxx… (100 characters)"
    """
    text = repr(value)
    return text if len(text) <= max_characters else f"{text[:max_characters]}… ({len(str(value))} characters)"


OUTPUT_DTYPES = ("float32", "float16", "int8", "uint8", "binary", "ubinary")

PARAMETERS: Mapping[str, Parameter] = {
    p.name: p
    for p in (
        Parameter("output_types", str, ("encode",), tuple(ENCODE_OUTPUTS), is_list=True, doc="outputs to fill"),
        Parameter("output_dtype", str, ("encode",), OUTPUT_DTYPES, doc="number format of the vectors"),
        Parameter("is_query", bool, ("encode",), doc="apply the model's query prompt"),
        Parameter("instruction", str, doc="prompt put before each text, or before the query of a score"),
        Parameter("profile", str, doc="named set of options of the model"),
        Parameter("lora", str, doc="LoRA adapter of the model"),
        Parameter("score_mode", str, ("score",), doc="what the score is made of, where the model has several"),
        Parameter("dimensions", int, ("encode",), minimum=1, doc="keep the first k dimensions"),
        Parameter("normalize", bool, ("encode",), doc="scale dense vectors to unit length"),
        Parameter("threshold", float, ("extract",), doc="lowest score to report"),
        Parameter("flat_ner", bool, ("extract",), doc="no nested entities"),
        Parameter("multi_label", bool, ("extract",), doc="several labels for one span"),
        Parameter("output_schema", str, ("extract",), doc="JSON schema of the extracted data"),
    )
}


def limit(name: str, **changes: Any) -> Parameter:
    """The contract's parameter `name`, narrowed to what one model allows."""
    return replace(PARAMETERS[name], **changes)


def check_parameters(given: Mapping[str, Any], allowed: Mapping[str, Parameter]) -> dict[str, ParameterValue]:
    """Validate request parameters against those a model takes; InputError for the first wrong one."""
    for name in given:
        if name not in allowed:
            raise InputError(f"parameter {name}: unknown here; allowed are {', '.join(sorted(allowed))}")
    return {name: allowed[name].check(value) for name, value in given.items()}
