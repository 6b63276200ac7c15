"""The model file's `endpoint`: a remote server that computes the model (SGLang, vLLM, or one with the same API)."""

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sie_triton.contract.spec import Endpoint

EXAMPLE = "http://host:30000"


def check_url(url: str) -> str:
    """Return the API's base URL without its trailing /v1; ValueError, for pydantic, says what is wrong."""
    if not url.isprintable() or " " in url:
        raise ValueError(f"must not contain spaces or control characters; write it like {EXAMPLE}")
    try:
        parts = urlsplit(url)
        has_host, _ = bool(parts.hostname), parts.port
    except ValueError as exc:
        raise ValueError(f"is not a URL ({exc}); write it like {EXAMPLE}") from exc
    if parts.scheme not in ("http", "https") or not has_host:
        raise ValueError(f"must be an http or https URL, like {EXAMPLE}")
    if "@" in parts.netloc:
        raise ValueError(
            "must not contain a user or a password; name an environment variable that holds the key in api_key_env"
        )
    if "?" in url or "#" in url:
        raise ValueError(f"must not contain a query or a fragment; end it with the host or a path, like {EXAMPLE}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def check_key_variable(name: str) -> str:
    """Return `name`; ValueError if this environment variable is a setting of this server."""
    if name.upper().startswith("SIE_"):
        raise ValueError("must not begin with SIE_, like this server's settings; put the key into another variable")
    return name


class EndpointOptions(BaseModel):
    """The endpoint of a profile. `model` is the model's name there; the default is its `hf_id`, else its `sie_id`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, AfterValidator(check_url)]
    model: Annotated[str, Field(min_length=1)] | None = None
    api_key_env: (
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(check_key_variable)] | None
    ) = None

    def resolved(self, name: str) -> Endpoint:
        """Return the Endpoint; `name` is the model's default name there."""
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
    """Return the options as a mapping; a string stands for its URL alone."""
    return {"url": given} if isinstance(given, str) else given
