"""Which request parameters one model takes: the contract's, narrowed to what the model has."""

from collections.abc import Mapping
from typing import Any

from sie_triton.contract import OUTPUT_DTYPES, QUANTIZED, Parameter, limit
from sie_triton.spec import FORWARD_TYPE, ModelSpec


def model_parameters(spec: ModelSpec) -> Mapping[str, Parameter]:
    """Parameters by name, for checking requests and for documentation."""
    parameters = [
        limit("output_types", choices=spec.output_types),
        limit("output_dtype", choices=OUTPUT_DTYPES if QUANTIZED.keys() & set(spec.output_types) else ("float32",)),
        limit("is_query"),
        limit("instruction"),
        limit("profile", choices=spec.profiles),
    ]
    if spec.dense_dim:
        parameters += [limit("dimensions", maximum=spec.dense_dim), limit("normalize")]
    return {parameter.name: parameter for parameter in parameters}


def wanted_types(spec: ModelSpec, options: Mapping[str, Any]) -> frozenset[str]:
    """The output types that a request with these checked parameters gets."""
    return frozenset(options["output_types"].split(",") if "output_types" in options else spec.output_types)


def forward_types(wanted: frozenset[str]) -> frozenset[str]:
    """What the forward pass must give for it.

    >>> sorted(forward_types(frozenset({"dense", "muvera"})))
    ['dense', 'multivector']
    """
    return frozenset(FORWARD_TYPE.get(each, each) for each in wanted)
