"""The keys of a model file that its family defines: options, and the request parameters that profiles set."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sie_triton.checkpoints.files import shortened
from sie_triton.contract import Parameter
from sie_triton.contract.spec import Profile
from sie_triton.errors import CatalogError, InputError
from sie_triton.models.catalog.options import ProfileConfig, RuntimeOptions
from sie_triton.models.families import Family
from sie_triton.settings.validation import requirement


def option_names(kind: Family) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind.options))


def own_parameters(kind: Family) -> frozenset[str]:
    return frozenset(parameter.name for parameter in kind.parameters)


def family_options(profile: ProfileConfig, kind: Family, source: str) -> Mapping[str, Any]:
    """Return the family's validated options, without those that are None; CatalogError names each invalid key."""
    options, names = profile.adapter_options, option_names(kind)
    at_loadtime, at_runtime = (
        {name: value for name, value in given.items() if name in names}
        for given in (options.loadtime.own, options.runtime.own)
    )
    given = {**at_loadtime, **at_runtime}
    try:
        found = _validator(kind).validate_python(given)
    except ValidationError as exc:
        where = f"{source}: profiles.default.adapter_options"
        lines = [
            f"{where}.{_key(error['loc'], at_runtime)}" + error_detail(error) for error in exc.errors(include_url=False)
        ]
        raise CatalogError("\n".join(lines)) from exc
    return {name: value for name, value in asdict(found).items() if value is not None}


@cache
def _validator(kind: Family) -> TypeAdapter[Any]:
    """Return the validator of a family's options. Making one takes longer than to use it."""
    return TypeAdapter(kind.options)


def with_defaults(name: str, profile: ProfileConfig, kind: Family, source: str) -> RuntimeOptions:
    """Return the profile's runtime options; CatalogError if a default that loadtime gives for one is invalid."""
    try:
        return profile.with_defaults(option_names(kind), own_parameters(kind))
    except ValidationError as exc:
        where = f"{source}: profiles.{name}.adapter_options.loadtime"
        lines = [
            f"{where}.{_loadtime_key(error['loc'])}" + error_detail(error) for error in exc.errors(include_url=False)
        ]
        raise CatalogError("\n".join(lines)) from exc


def _loadtime_key(location: Sequence[int | str]) -> str:
    return _dotted(location).replace("muvera.", "muvera_config.", 1)


def profile_spec(
    name: str, options: RuntimeOptions, outputs: Sequence[str], parameters: Iterable[Parameter], source: str
) -> Profile:
    """Return the profile as the stages read it; CatalogError names each value that is not allowed.

    `outputs` are those of the model, `parameters` the family's own.
    """
    has = tuple(each for each in outputs if each != "muvera" or options.muvera is not None)
    # In SIE's model files, dense stands for the MUVERA encoding.
    wanted = ["muvera" if each == "dense" and "dense" not in has else each for each in options.output_types]
    if set(wanted) - set(has):
        raise CatalogError(
            f"{source}: profiles.{name}: adapter_options.runtime.output_types: "
            f"must be among {', '.join(has)} (given {', '.join(options.output_types)})"
        )
    chosen: dict[str, Any] = {"output_types": ",".join(wanted or has)} if has else {}
    if options.normalize is not None:
        chosen["normalize"] = options.normalize
    if options.lora_id:
        chosen["lora"] = options.lora_id
    return Profile(
        name=name,
        parameters={**chosen, **_own(name, options, parameters, source)},
        query_template=options.query_template or "",
        document_template=options.doc_template or "",
        query_instruction=options.default_instruction or "",
        instruction=options.instruction or None,
    )


def _own(name: str, options: RuntimeOptions, parameters: Iterable[Parameter], source: str) -> dict[str, Any]:
    try:
        return {p.name: p.check(options.own[p.name]) for p in parameters if p.name in options.own}
    except InputError as exc:
        raise CatalogError(f"{source}: profiles.{name}: adapter_options.runtime: {exc}") from exc


def error_detail(error: Any) -> str:
    """Return the part of an error line that follows the key: the requirement, and the given value."""
    given = "" if error["type"] == "missing" else f" (given {shortened(error['input'])})"
    return f": {requirement(error)}{given}"


def _key(location: Sequence[int | str], at_runtime: Mapping[str, Any]) -> str:
    return f"{'runtime' if location[:1] and location[0] in at_runtime else 'loadtime'}.{_dotted(location)}"


def _dotted(location: Sequence[int | str]) -> str:
    return ".".join(map(str, location))
