"""docs/settings.md: each field of `Settings`, with its variable, default and description."""

import re
from collections.abc import Iterator
from typing import Any

from sie_triton.settings import Settings
from sie_triton.settings.groups import GROUPS
from sie_triton.settings.sources import IN_BYTES, variable

INTRODUCTION = """\
# Settings

<!-- Generated from sie_triton/settings by `python -m tools.pages`. -->

A setting is a flag of `sie-triton serve` (`--http-port 8000`), an environment variable (`SIE_HTTP_PORT=8000`), or a
line of `sie.yaml` (`http_port: 8000`), in this order of precedence. Those of a cluster are flags of `gateway`,
`sidecar` and `config-service`. `SIE_CONFIG` names another file than `sie.yaml`. A name ends with its unit;
bytes may also be 4GB (4 × 1000³) or 4GiB (4 × 1024³). [Tuning](tuning.md) says which settings are worth changing.
"""

# Defaults that depend on the machine.
FACTORIES = {
    "data_dir": "~/.cache/sie-triton",
    "environments_dir": "~/.local/share/sie-triton/environments",
    "models_dir": "",
}
MIB, GIB = 1024**2, 1024**3

# Units in descriptions, which the names of settings end with, too.
UNITS = re.compile(rf",? (?:in milliseconds|in seconds|{re.escape(IN_BYTES)})")


def page() -> str:
    """Return the page; ValueError if a setting is in no group, or in two."""
    named = [name for names in GROUPS.values() for name in names.split()]
    if sorted(named) != sorted(Settings.model_fields):
        raise ValueError(f"settings of GROUPS differ from those of Settings: {set(named) ^ set(Settings.model_fields)}")
    parts = [f"\n## {title}\n\n{''.join(_lines(names.split()))}" for title, names in GROUPS.items()]
    return INTRODUCTION + "".join(parts)


def _lines(names: list[str]) -> Iterator[str]:
    """Yield a line for each setting: its variable with the default, and its effect."""
    for name in names:
        declared = Settings.model_fields[name]
        default = FACTORIES[name] if name in FACTORIES else shown(declared.default)
        assignment = f"{variable(name)}={default}" if default else variable(name)
        yield f"- `{assignment}`: {UNITS.sub('', str(declared.description))}\n"


def shown(default: Any) -> str:
    """Return a default as an environment variable may hold it.

    >>> shown(64 * MIB), shown(GIB), shown(True), shown(1_500_000_000), shown(0.5), shown(None)
    ('64MiB', '1GiB', 'true', '1500000000', '0.5', '')
    """
    if default in (None, ""):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int):
        if default % MIB == 0 and default:
            return f"{default // GIB}GiB" if default % GIB == 0 else f"{default // MIB}MiB"
        return str(default)
    return f"{default:g}" if isinstance(default, float) else str(default)
