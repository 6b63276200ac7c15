"""Which request parameters one model takes: the contract's, narrowed to what the model has."""

from collections.abc import Mapping

from sie_triton.contract import Parameter, limit
from sie_triton.spec import ModelSpec


def model_parameters(spec: ModelSpec) -> Mapping[str, Parameter]:
    """Parameters by name, for checking requests and for documentation."""
    parameters = (
        limit("output_types", choices=spec.output_types),
        limit("output_dtype", choices=("float32",)),
        limit("is_query"),
        limit("instruction"),
        limit("profile", choices=spec.profiles),
        limit("dimensions", maximum=spec.dense_dim),
        limit("normalize"),
    )
    return {parameter.name: parameter for parameter in parameters}
