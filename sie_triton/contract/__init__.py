"""The public contract: tensors, output types, request parameters and verbs, each name typed once.

Render writes them into Triton's model configurations, the stages read and write them, the client sends and parses
them.
"""

from collections.abc import Mapping

from sie_triton.contract.encode import Encode
from sie_triton.contract.model import Batch, Computed, Features, Model, Part, Ragged, Rows
from sie_triton.contract.outputs import ENCODE_OUTPUTS, OUTPUT_DTYPES, SCALED_DTYPES, SCORE_MODES, Output
from sie_triton.contract.parameters import Parameter, ParameterValue, check_parameters, shown
from sie_triton.contract.score import Score
from sie_triton.contract.tensors import ITEMS
from sie_triton.contract.verb import Answering, Options, Verb

VERBS: Mapping[str, Verb] = {verb.name: verb for verb in (Encode(), Score())}

# What a further ensemble of a model may be called, also of the verb that is still to come.
TASKS = (*VERBS, "extract")

__all__ = [
    "ENCODE_OUTPUTS",
    "ITEMS",
    "OUTPUT_DTYPES",
    "SCALED_DTYPES",
    "SCORE_MODES",
    "TASKS",
    "VERBS",
    "Answering",
    "Batch",
    "Computed",
    "Features",
    "Model",
    "Options",
    "Output",
    "Parameter",
    "ParameterValue",
    "Part",
    "Ragged",
    "Rows",
    "Verb",
    "check_parameters",
    "shown",
]
