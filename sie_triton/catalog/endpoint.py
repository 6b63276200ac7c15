"""Where a model file says that a server of somebody's computes the model: SGLang, vLLM, or one with the same API."""

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sie_triton.spec import Endpoint

EXAMPLE = "http://host:30000"


def check_url(url: str) -> str:
    """What the API's paths follow, without the /v1 that these begin with; pydantic's ValueError says what is wrong."""
    if not url.isprintable() or " " in url:
        raise ValueError(f"must hold no spaces and no control characters; write one like {EXAMPLE}")
    try:
        parts = urlsplit(url)
        has_host, _ = bool(parts.hostname), parts.port
    except ValueError as exc:
        raise ValueError(f"is no URL ({exc}); write one like {EXAMPLE}") from exc
    if parts.scheme not in ("http", "https") or not has_host:
        raise ValueError(f"must be a URL of http or https, like {EXAMPLE}")
    if "@" in parts.netloc:
        raise ValueError("must hold no user and no password; name an environment variable with a key in api_key_env")
    if "?" in url or "#" in url:
        raise ValueError(f"must end with the host, or with a path, like {EXAMPLE}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def check_key_variable(name: str) -> str:
    """Name of an environment variable that is not a setting of this server; ValueError says what is allowed."""
    if name.upper().startswith("SIE_"):
        raise ValueError("must not name a setting of this server; give the key a variable of its own")
    return name


class EndpointOptions(BaseModel):
    """`model` is its name there; None: that of its weights on the hub, else its sie_id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, AfterValidator(check_url)]
    model: Annotated[str, Field(min_length=1)] | None = None
    api_key_env: (
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(check_key_variable)] | None
    ) = None

    def resolved(self, name: str) -> Endpoint:
        """`name` is what the model is called there where nobody says."""
        return Endpoint(self.url, self.model or name, self.api_key_env or "")


def check_key(endpoint: Endpoint, patterns: Collection[str]) -> None:
    """Check that a model that an admin added to the running server may send its key to its endpoint.

    Raise ValueError unless the key's variable matches one of `patterns` and the URL is https or local.
    """
    name = endpoint.api_key_env
    if name and not any(fnmatchcase(name, pattern) for pattern in patterns):
        raise ValueError(
            f"endpoint.api_key_env: an added model may not use {name}; start the server with "
            f"SIE_API_KEY_VARIABLES={name}, or put the file into models_dir"
        )
    if name and not endpoint.is_private:
        raise ValueError("endpoint.url: must begin with https or be on this machine, because a key is sent to it")


def as_written(given: Any) -> Any:
    """A URL alone is enough."""
    return {"url": given} if isinstance(given, str) else given
