"""Models that generate text: the door forwards their requests to the endpoint of the model file."""

from collections.abc import Iterator, Mapping
from typing import Any

from sie_triton.contract.spec import GENERATE
from sie_triton.models.catalog.endpoint import EXAMPLE
from sie_triton.models.catalog.options import ProfileConfig
from sie_triton.models.catalog.tasks import Tasks


def check_has_endpoint(profiles: object) -> None:
    """Raise ValueError unless one of a file's profiles, which are not yet validated, names an endpoint."""
    given = profiles.values() if isinstance(profiles, Mapping) else ()
    if not any(isinstance(profile, Mapping) and profile.get("endpoint") is not None for profile in given):
        raise ValueError(
            "tasks.generate: this server computes no text; name one that does, such as vLLM, as "
            f"profiles.default.endpoint: {EXAMPLE}"
        )


def contradictions(tasks: Tasks, given: Mapping[str, Any], default: ProfileConfig) -> Iterator[str]:
    """Yield a line for each key that contradicts forwarding; `given` are the keys of the file with their values."""
    if others := [name for name in Tasks.model_fields if name != GENERATE and getattr(tasks, name) is not None]:
        yield f"tasks: {GENERATE} cannot be combined with {', '.join(others)}; give them a model file of their own"
    if default.endpoint is None:
        yield f"profiles.default.endpoint: is missing; tasks.{GENERATE} needs the URL of a server, like {EXAMPLE}"
    for key in ("weights_path", "package_backed", "loras", "environment", "allow_pickle"):
        if given.get(key):
            yield f"{key}: cannot be used with tasks.{GENERATE}: the endpoint holds the weights; leave it out"


def keys_without_effect(given: Mapping[str, Any], profiles: Mapping[str, ProfileConfig]) -> Iterator[str]:
    """Yield each key of a file that the endpoint decides."""
    yield from sorted(given.keys() - {"sie_id", "hf_id", "license", "inputs", "tasks", "profiles"})
    for name, profile in profiles.items():
        if name in ("default", profiles["default"].extends):
            others = profile.model_fields_set - {"endpoint", "engine", "extends"}
            yield from (f"profiles.{name}.{key}" for key in sorted(others))
        else:
            yield f"profiles.{name}"
