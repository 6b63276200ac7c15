"""Settings and model names → the repository: the catalog and render arrows joined."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sie_triton.catalog import ModelConfig, check_dims, select
from sie_triton.errors import SettingsError
from sie_triton.render.repository import RenderOptions, check, render
from sie_triton.scheduling.hook import build_hook
from sie_triton.settings import Settings
from sie_triton.spec import ModelSpec, Runtime

NO_HOOK = (
    "warning: no C compiler found, so Triton batches by request count alone; results are the same, "
    "and inference still cuts its work by cost. Install gcc to batch by cost in the queue too"
)


def write_repository(
    directory: Path,
    settings: Settings,
    names: Sequence[str],
    *,
    runtime: Runtime | None = None,
    hook: bool = True,
) -> list[str]:
    """Render the selected models into `directory`; returns warnings worth showing.

    `runtime` is what the stages shall obey; by default a portable one with no path of this machine.
    """
    models = selected(settings, names)
    specs = specs_of(settings, models, runtime)
    warnings = [line for model in models for line in model.warnings()]
    with tempfile.TemporaryDirectory() as scratch:
        built = build_hook(Path(scratch)) if hook else None
        render(directory, specs, checked_options(settings, [spec.model for spec in specs]), built)
    return [*warnings, *([NO_HOOK] if hook and built is None else [])]


def check_repository(directory: Path, settings: Settings, names: Sequence[str]) -> list[str]:
    """What differs between `directory` and a fresh rendering."""
    specs = specs_of(settings, selected(settings, names), None)
    return check(directory, specs, checked_options(settings, [spec.model for spec in specs]))


def selected(settings: Settings, names: Sequence[str]) -> list[ModelConfig]:
    return select(names, settings.models_dir, allow_hub=settings.hf_fallback)


def specs_of(settings: Settings, models: Sequence[ModelConfig], runtime: Runtime | None) -> list[ModelSpec]:
    """CatalogError for the first that cannot be served."""
    specs = [model.resolve(runtime or settings.portable_runtime) for model in models]
    for model in models:
        check_dims(model)
    return specs if runtime is None else [replace(spec, weights=_of_this_machine(spec.weights)) for spec in specs]


def _of_this_machine(weights: str) -> str:
    """Wherever a stage is started.

    >>> _of_this_machine("hub://org/model"), _of_this_machine("/a/b")
    ('hub://org/model', '/a/b')
    """
    return weights if "://" in weights else str(Path(weights).expanduser().absolute())


def checked_options(settings: Settings, served: Sequence[str]) -> RenderOptions:
    """SettingsError where a model is to be loaded that is not `served`."""
    unknown = sorted(settings.preloaded - set(served))
    if unknown:
        raise SettingsError(f"preload_models: not served: {', '.join(unknown)}; served are {', '.join(served)}")
    return options_of(settings)


def options_of(settings: Settings) -> RenderOptions:
    return RenderOptions(
        max_batch_requests=settings.max_batch_requests,
        max_queue_delay_us=round(settings.max_batch_wait_ms * 1000),
        preloaded=settings.preloaded,
    )
