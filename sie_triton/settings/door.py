"""Settings of the door, which serves SIE's own HTTP; they are part of the server's settings."""

import os
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from sie_triton.settings.secrets import checked, tokens
from sie_triton.settings.sources import AUTH_TOKEN, IN_BYTES, Bytes


class DoorSettings(BaseModel):
    """Settings of the door. Field descriptions are the help texts of the command line."""

    door: bool = Field(
        True,
        description="serve the door: HTTP of SIE, OpenAI, Cohere, Jina and text-embeddings-inference",
    )
    door_port: int = Field(8080, ge=1, le=65535, description="the door's HTTP port")
    door_workers: int = Field(1, ge=1, le=64, description="number of processes of the door")
    door_timeout_s: float = Field(
        120,
        gt=0,
        le=3600,
        description="timeout of a request to the door, in seconds; the header X-Request-Timeout overrides it",
    )
    door_max_body_bytes: Bytes = Field(64 * 1024**2, ge=1, description=f"maximum size of a request body, {IN_BYTES}")
    door_max_memory_bytes: Bytes = Field(
        1024**3,
        ge=1,
        description=f"memory limit of the requests in progress in each process of the door, {IN_BYTES}; beyond it a "
        "request gets 503, or 429 on routes other than SIE's",
    )
    door_max_file_bytes: Bytes = Field(
        16 * 1024**3,
        ge=0,
        description=f"maximum size of all files of /v1/files in data_dir, {IN_BYTES}, of which each token has an equal "
        "share; beyond it uploads are refused, and batches end; 0: no files",
    )
    door_max_connections: int = Field(
        2048,
        ge=1,
        le=1_000_000,
        description="maximum number of connections to the door; beyond it the one that has been idle longest is closed",
    )
    door_allowed_hosts: str = Field(
        "",
        description="comma-separated Host headers that door, controller, config service and sidecar allow besides "
        "localhost and addresses; default: any, or none on loopback without tokens",
    )
    door_max_items: int = Field(10_000, ge=1, description="maximum number of items in a request to the door")
    door_cors_origins: str = Field(
        "",
        description="comma-separated CORS origins that may call the door, such as https://host; *: any; other web "
        "pages are refused",
    )
    door_tei_model: str = Field(
        "",
        description="comma-separated models for the routes of text-embeddings-inference, of which the first that "
        "supports the route is used; default: the only served one",
    )
    auth_mode: Literal["none", "static", "token"] = Field(
        "none",
        description="none, or token (or static): door_port, and reads at controller_port, need one of auth_tokens; "
        "Triton and the controller listen on 127.0.0.1 unless triton_host is set",
    )
    auth_tokens: str = Field(
        "",
        validate_default=True,
        description="comma-separated bearer tokens of clients, or @FILE with one a line; SIE_AUTH_TOKEN holds one more",
    )

    @property
    def asks_for_token(self) -> bool:
        return self.auth_mode != "none"

    @field_validator("auth_tokens", mode="before")
    @classmethod
    def _all_tokens(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        given = [*value.split(","), os.environ.get(AUTH_TOKEN, "")]
        return ",".join(checked(each.strip()) for each in given if each.strip())

    @field_validator("auth_tokens")
    @classmethod
    def _require_tokens(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("auth_mode", "none") != "none" and not tokens(value):
            raise ValueError(f"auth_mode {info.data['auth_mode']} needs at least one token")
        return value
