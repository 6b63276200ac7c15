"""Known models of a running server: the list of them, and the models of names that requests mention."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import CatalogError
from sie_triton.models.catalog import ModelConfig
from sie_triton.models.catalog.load import load_directory, load_files
from sie_triton.models.catalog.names import conflict_key
from sie_triton.models.catalog.select import all_known, mentioned
from sie_triton.pipeline.render.build import spec_of
from sie_triton.records.known_file import write_known
from sie_triton.records.serving_file import Serving
from sie_triton.settings import Settings


def list_known(serving: Serving, settings: Settings) -> None:
    """Write the models that requests may name to known.json; those that this version cannot serve are left out."""
    known = known_specs(_own(serving), settings) if settings.serve_known else ()
    write_known(serving.data_dir, {spec.model: spec.to_json() for spec in known})


def known_names(settings: Settings) -> list[str]:
    """Return the names of all known models that this version can serve, with those of models_dir."""
    own = load_directory(settings.models_dir).models if settings.models_dir else ()
    return [spec.model for spec in known_specs(own, settings)]


def known_specs(own: Sequence[ModelConfig], settings: Settings) -> Iterator[ModelSpec]:
    for model in all_known(own, settings.name_patterns):
        with suppress(CatalogError):
            yield spec_of(model, settings.runtime)


def find_mentioned(
    names: Iterable[str], serving: Serving, settings: Settings
) -> Iterator[tuple[str, ModelConfig | str]]:
    """Yield each name with its model, or with the reason why it cannot be served."""
    own, taken = _own(serving), {conflict_key(name): name for name in serving.models}
    for name in names:
        try:
            if name in serving.removed:
                raise CatalogError(
                    f"{name} was removed from this server until its next start; sie-triton models add {name} serves it"
                )
            if other := taken.get(conflict_key(name)):
                raise CatalogError(f"{name} cannot be served beside {other}: their directories would have one name")
            model = mentioned(
                name,
                own,
                settings.name_patterns,
                any_model=settings.allow_any_model,
                allow_hub=settings.hf_fallback,
                cluster=settings.cluster_cache,
            )
            spec_of(model, settings.runtime)
        except CatalogError as exc:
            yield name, str(exc)
        else:
            yield name, model


def _own(serving: Serving) -> Sequence[ModelConfig]:
    """Return the models of models_dir whose files are valid."""
    found = serving.own_files
    return () if found is None or isinstance(found, OSError) else load_files(found).models
