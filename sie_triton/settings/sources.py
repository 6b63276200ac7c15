"""Sources of a setting: a flag, an environment variable, or a key of the settings file.

A setting `http_port` is the flag --http-port, the variable SIE_HTTP_PORT and the key `http_port`.
"""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator

from sie_triton.contract.did_you_mean import did_you_mean
from sie_triton.errors import SettingsError
from sie_triton.settings.validation import requirement
from sie_triton.settings.yaml_reader import read_yaml

PREFIX = "SIE_"
DEFAULT_FILE = Path("sie.yaml")
FILE_VARIABLE = "SIE_CONFIG"

# Variables of SIE's own clusters that have no effect here, each with the reason or with what to use.
BY_NATS = "gateways hear of workers by NATS"
BY_GRPC = "a sidecar calls the gRPC of its Triton"
NOT_READ = {
    "SIE_RUST_PIPELINE_DEPTH": "SIE_MAX_CONCURRENT_BATCHES bounds the calls of a sidecar",
    "SIE_GATEWAY_HEALTH_MODE": BY_NATS,
    "SIE_GATEWAY_WORKERS": BY_NATS,
    "SIE_GATEWAY_KUBERNETES": BY_NATS,
    "SIE_IPC_SOCKET_PATH": BY_GRPC,
    "SIE_IPC_POOL_SIZE": BY_GRPC,
    "SIE_WORKER_PING_INTERVAL_MS": "a sidecar asks its Triton once in SIE_HEALTH_PUBLISH_INTERVAL_MS",
    "SIE_WORKER_READYZ_STALE_MULT": "a worker is gone after three missing heartbeats",
}

# A number of bytes with a unit of 1000 (kB, MB, GB, TB) or of 1024 (KiB, MiB, GiB, TiB), in lower case.
SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?(?:([kmgt])(i)?)?b?")
IN_BYTES = "in bytes (or as 4GB or 4GiB)"

# Source of a setting that nothing sets.
DEFAULT = "default"

# SIE's variable for one token, which counts beside those of SIE_AUTH_TOKENS.
AUTH_TOKEN = "SIE_AUTH_TOKEN"  # noqa: S105

# Settings whose values are never printed or written to a file.
SECRETS = ("admin_token", "auth_tokens", "nats_password")


def settings_file() -> Path:
    """Return the path in FILE_VARIABLE, else the default path."""
    return Path(os.environ.get(FILE_VARIABLE) or DEFAULT_FILE)


def file_settings() -> dict[str, Any]:
    """Return the unchecked content of the settings file, empty if the default file is absent.

    SettingsError names the file if it cannot be read.
    """
    path = settings_file()
    if path == DEFAULT_FILE and not path.exists():
        return {}
    try:
        content = read_yaml(path.read_text(encoding="utf-8-sig")) or {}
    except OSError as exc:
        raise SettingsError(f"{FILE_VARIABLE}={path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        said = str(exc)
        shown = said.splitlines()[0] if any(name in said for name in SECRETS) else said
        raise SettingsError(f"{path}: not valid YAML: {shown}") from exc
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError(f"{path}: must contain one setting per line, such as http_port: 8000")
    return content


def default_models_dir(directory: Path) -> Path | None:
    """Return `directory` if one of its YAML files begins like a model file; else None: other tools use the name too."""
    with suppress(OSError):
        for path in islice(directory.iterdir(), 1000):
            if path.suffix in (".yaml", ".yml") and path.is_file():
                with path.open(encoding="utf-8", errors="replace") as file:
                    if "sie_id:" in file.read(4096):
                        return directory
    return None


def read_size(value: Any) -> Any:
    """Return the number of bytes of a text with a unit, and any other value unchanged; ValueError for another unit.

    >>> read_size("4GB"), read_size("512 MiB"), read_size("1.5k"), read_size("7"), read_size(7)
    (4000000000, 536870912, 1500, 7, 7)
    """
    if not isinstance(value, str):
        return value
    if found := SIZE.fullmatch(value.strip().lower()):
        number, unit, is_binary = found.groups()
        size = Decimal(number) * (1024 if is_binary else 1000) ** ("kmgt".index(unit) + 1 if unit else 0)
        if size == int(size):
            return int(size)
    raise ValueError("must be a whole number of bytes, or have a unit: kB, MB, GB, TB, or KiB, MiB, GiB, TiB")


Bytes = Annotated[int, BeforeValidator(read_size)]


def why_not_read(name: str) -> str:
    """Return why a variable of SIE's own clusters has no effect here; empty for any other.

    >>> why_not_read("SIE_GATEWAY_K8S_NAMESPACE"), why_not_read("SIE_HTTP_PORT")
    ('gateways hear of workers by NATS', '')
    """
    return BY_NATS if name.startswith("SIE_GATEWAY_K8S_") else NOT_READ.get(name, "")


def variable(name: str) -> str:
    """
    >>> variable("http_port")
    'SIE_HTTP_PORT'
    """
    return PREFIX + name.upper()


def flag(name: str) -> str:
    """
    >>> flag("http_port")
    '--http-port'
    """
    return "--" + name.replace("_", "-")


def complaint(error: Any, flags: Collection[str], known: Collection[str]) -> str:
    """Describe a pydantic error in one line: the setting's source, its value, and the allowed values.

    `flags` names the settings that were given as flags, `known` all settings.
    """
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        advice = did_you_mean(name, known) or "; sie-triton serve --help-all lists all settings"
        return f"{settings_file()}: unknown key {name}{advice}"
    # A URL with an @ may hold a password.
    given_value = "" if name in SECRETS or "@" in str(error["input"]) else f"={error['input']}"
    return f"{_source(name, flags, error['input'])}{given_value}: {requirement(error)}"


def _source(name: str, flags: Collection[str], value: Any) -> str:
    if name in flags:
        return flag(name)
    if variable(name) in os.environ or value in ("", None):  # empty: no source sets a value
        return variable(name)
    return f"{settings_file()}: {name}"


def source_of(name: str, flags: Collection[str], in_file: Collection[str]) -> str:
    """Return where the value of a setting comes from: a flag, a variable, the settings file, or DEFAULT."""
    if name in flags:
        return flag(name)
    if os.environ.get(variable(name)):
        return variable(name)
    if name == "auth_tokens" and os.environ.get(AUTH_TOKEN):
        return AUTH_TOKEN
    return str(settings_file()) if name in in_file else DEFAULT
