"""The LoRA adapters of a model file: those under `loras`, and those of its profiles."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from sie_triton.contract.limits import LIMITS
from sie_triton.errors import CatalogError
from sie_triton.models.catalog.options import LORA, RuntimeOptions
from sie_triton.models.known_loras import check_name, source_of

Loras = dict[Annotated[str, AfterValidator(check_name)], Annotated[str, AfterValidator(source_of)]]


def adapters(named: Mapping[str, str], profiles: Mapping[str, RuntimeOptions], source: str) -> dict[str, str]:
    """Return the location of each adapter, by name.

    A profile's `lora_id` that is not one of `named` is both the location of an adapter and its name. CatalogError if it
    is no valid location, or too long for a name.
    """
    found = dict(named)
    for profile, options in profiles.items():
        name = options.lora_id
        if name and name not in found:
            try:
                found[name] = source_of(name)
            except ValueError as exc:
                names = f"is not among loras ({', '.join(named)}), and so " if named else ""
                raise CatalogError(f"{source}: profiles.{profile}.{LORA}: {name!r} {names}{exc}") from exc
            if len(name) > LIMITS.max_lora_characters:
                too_long = (
                    f"has {len(name)} characters, more than {LIMITS.max_lora_characters}; give it a name under loras"
                )
                raise CatalogError(f"{source}: profiles.{profile}.{LORA}: {too_long}")
    return found
