"""Which request parameters one model takes: the contract's, narrowed to what the model has."""

from collections.abc import Mapping
from typing import Any

from sie_triton.contract import OUTPUT_DTYPES, QUANTIZED, SCORE_MODES, SCORES, Parameter, limit
from sie_triton.spec import FORWARD_TYPE, ModelSpec, Profile

# An instruction goes with every text. A longer one, for each token that the model reads, would leave no room for the
# texts, and cost its length for each of them.
CHARACTERS_PER_TOKEN = 16


def model_parameters(spec: ModelSpec, task: str = "encode") -> Mapping[str, Parameter]:
    """Parameters of one task by name, for checking requests and for documentation."""
    longest = CHARACTERS_PER_TOKEN * spec.max_sequence_length
    parameters = [
        limit("instruction", max_characters=longest),
        limit("profile", choices=tuple(p.name for p in spec.profiles)),
    ]
    if task == "score":
        parameters += [limit("score_mode", choices=spec.score_modes)] if len(spec.score_modes) > 1 else []
    else:
        quantizes = QUANTIZED.keys() & set(spec.output_types)
        parameters += [
            limit("output_types", choices=spec.output_types),
            limit("output_dtype", choices=OUTPUT_DTYPES if quantizes else ("float32",)),
            limit("is_query"),
        ]
        if spec.dense_dim:
            parameters += [limit("dimensions", maximum=spec.dense_dim), limit("normalize")]
    return {parameter.name: parameter for parameter in parameters}


def profile_of(spec: ModelSpec, options: Mapping[str, Any]) -> Profile:
    """The profile that a request with these checked parameters has."""
    return spec.profile(options.get("profile", "default"))


def wanted_types(spec: ModelSpec, options: Mapping[str, Any]) -> frozenset[str]:
    """The output types that a request to encode with these checked parameters gets."""
    if "output_types" in options:
        return frozenset(options["output_types"].split(","))
    return frozenset(profile_of(spec, options).output_types or spec.output_types)


def forward_types(wanted: frozenset[str]) -> frozenset[str]:
    """What the forward pass must give for it.

    >>> sorted(forward_types(frozenset({"dense", "muvera"})))
    ['dense', 'multivector']
    """
    return frozenset(FORWARD_TYPE.get(each, each) for each in wanted)


def score_mode(spec: ModelSpec, options: Mapping[str, Any]) -> str:
    """How a request to score with these checked parameters is scored; empty where pairs are."""
    return str(options.get("score_mode", spec.score_modes[0])) if spec.score_modes else ""


def score_types(mode: str) -> frozenset[str]:
    """What the forward pass must give for it.

    >>> score_types("maxsim"), score_types("")
    (frozenset({'multivector'}), frozenset({'scores'}))
    """
    return frozenset(SCORE_MODES[mode] if mode else [SCORES.name])
