"""Where a model file says that a server of somebody's computes the model: SGLang, vLLM, or one with the same API."""

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


class EndpointOptions(BaseModel):
    """`model` is its name there; None: that of its weights on the hub, else its sie_id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, AfterValidator(check_url)]
    model: Annotated[str, Field(min_length=1)] | None = None
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None

    def resolved(self, name: str) -> Endpoint:
        """`name` is what the model is called there where nobody says."""
        return Endpoint(self.url, self.model or name, self.api_key_env or "")


def as_written(given: Any) -> Any:
    """A URL alone is enough."""
    return {"url": given} if isinstance(given, str) else given
