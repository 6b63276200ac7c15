"""Build a model repository from settings and model names: join catalog and render."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.errors import CatalogError, SettingsError
from sie_triton.models.catalog import LoadedModels, ModelConfig, check_dims, select
from sie_triton.pipeline.render.repository import NO_HOOK, RenderOptions, build_hook, check, render
from sie_triton.pipeline.render.unloadable import environment_causes, warnings_of
from sie_triton.settings import Settings


def write_repository(
    directory: Path,
    settings: Settings,
    names: Sequence[str],
    *,
    runtime: Runtime | None = None,
    hook: bool = True,
) -> list[str]:
    """Render the selected models into `directory`; return warnings for the user.

    `runtime` holds the settings of the stages; the default is portable and contains no path of this machine.
    """
    found = selected(settings, names)
    runtime = runtime or settings.portable_runtime
    specs = [spec_of(model, runtime) for model in found.models]
    warnings = [line for model in found.models for line in model.warnings()]
    warnings += [f"not served: {line}" for problem in found.problems.values() for line in problem.splitlines()]
    forwarded = "a door forwards its requests, which sie-triton serve starts"
    warnings += [f"not rendered: {spec.model}: {forwarded}" for spec in specs if spec.is_forwarded]
    specs = rendered(specs)
    with tempfile.TemporaryDirectory() as scratch:
        built = build_hook(Path(scratch)) if hook else None
        render(directory, specs, checked_options(settings, [spec.model for spec in specs]), built)
    warnings += warnings_of(environment_causes(settings, specs))
    return [*warnings, *([NO_HOOK] if hook and built is None else [])]


def check_repository(directory: Path, settings: Settings, names: Sequence[str]) -> list[str]:
    """Return the differences between `directory` and a fresh rendering."""
    runtime = settings.portable_runtime
    specs = rendered([spec_of(model, runtime) for model in selected(settings, names).models])
    return check(directory, specs, checked_options(settings, [spec.model for spec in specs]))


def selected(settings: Settings, names: Sequence[str]) -> LoadedModels:
    """Return the models that can be served, and the problems of the others.

    CatalogError if one of `names` cannot be served, or if no model is left.
    """
    found = select(
        names,
        settings.models_dir,
        allow_hub=settings.hf_fallback,
        cluster=settings.cluster_cache,
        matching=settings.name_patterns,
    )
    models, problems, runtime = [], dict(found.problems), settings.portable_runtime
    for model in found.models:
        try:
            spec_of(model, runtime)
        except CatalogError as exc:
            if names and not model.base:
                raise
            problems[model.source] = str(exc)
        else:
            models.append(model)
    if not models:
        raise CatalogError("\n".join(problems.values()))
    return LoadedModels(models, problems)


def spec_of(model: ModelConfig, runtime: Runtime) -> ModelSpec:
    """Resolve a model; CatalogError if it cannot be served."""
    spec = model.resolve(runtime)
    check_dims(model)
    return spec


def rendered(specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    return [spec for spec in specs if not spec.is_forwarded]


def checked_options(settings: Settings, served: Sequence[str]) -> RenderOptions:
    """Return the options of rendering; SettingsError if a model to preload is not `served`."""
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
