"""The public contract: tensors, output types, request parameters and verbs, each name written once.

Render writes them into Triton's model configurations, the stages read and write them, and the client sends and parses
them.
"""

from collections.abc import Mapping

from sie_triton.contract.encode import Encode
from sie_triton.contract.extract import Annotated, Extract, Known, Label
from sie_triton.contract.findings import Class, Entity, Findings, Line, Object, Relation, place
from sie_triton.contract.model import Batch, Computed, Extraction, Features, Model, Part, Ragged, Rows, Spans
from sie_triton.contract.outputs import ENCODE_OUTPUTS, OUTPUT_DTYPES, SCALED_DTYPES, SCORE_MODES, Output
from sie_triton.contract.parameters import Parameter, ParameterValue, check_parameters, shown
from sie_triton.contract.score import Score
from sie_triton.contract.tensors import ITEMS
from sie_triton.contract.verb import (
    CHUNK_OVERLAP,
    CHUNK_TOKENS,
    LATE_CHUNKING,
    LORA,
    PAGES,
    TRUNCATION_SIDE,
    Answering,
    Options,
    Verb,
    common_outputs,
)

VERBS: Mapping[str, Verb] = {verb.name: verb for verb in (Encode(), Score(), Extract())}

# Allowed names of a model's further ensembles.
TASKS = tuple(VERBS)

__all__ = [
    "CHUNK_OVERLAP",
    "CHUNK_TOKENS",
    "ENCODE_OUTPUTS",
    "ITEMS",
    "LATE_CHUNKING",
    "LORA",
    "OUTPUT_DTYPES",
    "PAGES",
    "SCALED_DTYPES",
    "SCORE_MODES",
    "TASKS",
    "TRUNCATION_SIDE",
    "VERBS",
    "Annotated",
    "Answering",
    "Batch",
    "Class",
    "Computed",
    "Entity",
    "Extraction",
    "Features",
    "Findings",
    "Known",
    "Label",
    "Line",
    "Model",
    "Object",
    "Options",
    "Output",
    "Parameter",
    "ParameterValue",
    "Part",
    "Ragged",
    "Relation",
    "Rows",
    "Spans",
    "Verb",
    "check_parameters",
    "common_outputs",
    "place",
    "shown",
]
