"""Reasons why requests of a model would fail, found in local files and by asking the hub."""

from collections.abc import Iterator, Mapping, Sequence

from sie_triton.contract.names import enumerated
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import LoadError
from sie_triton.models.catalog.on_disk import check_weights
from sie_triton.models.environments.venv import find, try_out
from sie_triton.models.weights.hub import ANY_WEIGHTS, Hub
from sie_triton.models.weights.locate import HUB, SMALL_FILES
from sie_triton.settings import Settings

# Maximum number of models that a warning names.
MAX_NAMED = 5

Causes = Mapping[str, Sequence[str]]


def causes(settings: Settings, specs: Sequence[ModelSpec]) -> Causes:
    """Map each cause to the names of the models that it prevents from loading."""
    found: dict[str, list[str]] = {}
    hub = Hub(allowed=settings.hf_fallback, cluster=settings.cluster_cache)
    for spec in specs:
        for cause in _of_weights(spec, hub):
            found.setdefault(cause, []).append(spec.model)
    return {**environment_causes(settings, specs), **found}


def environment_causes(settings: Settings, specs: Sequence[ModelSpec]) -> Causes:
    """Map each cause in a worker environment to the names of its models; each environment is tried once."""
    models: dict[str, list[str]] = {}
    for spec in specs:
        models.setdefault(spec.environment, []).append(spec.model)
    found: dict[str, list[str]] = {}
    for name in sorted(models.keys() - {""}):
        try:
            try_out(find(settings.environments_dir, name))
        except LoadError as exc:
            found[str(exc)] = models[name]
    return found


def warnings_of(found: Causes) -> Iterator[str]:
    for cause, models in found.items():
        yield f"warning: {enumerated(models, MAX_NAMED)}: requests fail until this is fixed: {cause}"


def _of_weights(spec: ModelSpec, hub: Hub) -> Iterator[str]:
    try:
        if spec.weights.startswith(HUB):
            hub.check(spec.weights.removeprefix(HUB), SMALL_FILES if spec.endpoint else ANY_WEIGHTS)
        else:
            check_weights(spec)
    except LoadError as exc:
        yield str(exc)
