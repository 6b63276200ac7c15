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
        description="also serve the HTTP routes of SIE, OpenAI, Cohere, Jina and text-embeddings-inference, from "
        "processes beside Triton",
    )
    door_port: int = Field(
        8080, ge=1, le=65535, description="port of the door, the HTTP routes of SIE, OpenAI, Cohere, Jina and TEI"
    )
    door_workers: int = Field(1, ge=1, le=64, description="number of processes that share door_port")
    door_timeout_s: float = Field(
        120,
        gt=0,
        le=3600,
        description="timeout of a request to door_port, in seconds; a request's X-Request-Timeout header overrides it",
    )
    door_max_body_bytes: Bytes = Field(
        64 * 1024**2, ge=1, description=f"maximum size of a request body on door_port, {IN_BYTES}"
    )
    door_max_memory_bytes: Bytes = Field(
        1024**3,
        ge=1,
        description=f"memory limit of all requests in progress in each process on door_port, {IN_BYTES}: bodies, their "
        "decoded content and responses; beyond it a request gets 503 with Retry-After, or 429 on the routes of OpenAI, "
        "Cohere, Jina and text-embeddings-inference",
    )
    door_max_connections: int = Field(
        2048,
        ge=1,
        le=1_000_000,
        description="maximum number of connections to door_port, lowered if the process may open fewer files; beyond "
        "it the connection that has been idle longest is closed",
    )
    door_allowed_hosts: str = Field(
        "",
        description="allowed Host headers of requests to door_port, controller_port, config_port and "
        "worker_metrics_port besides localhost and IP addresses, separated by commas; default: any, or none for a port "
        "that listens on loopback without tokens",
    )
    door_max_items: int = Field(10_000, ge=1, description="maximum number of items in a request to door_port")
    door_cors_origins: str = Field(
        "",
        description="allowed CORS origins of door_port, such as https://host, separated by commas; *: any origin; "
        "requests of other pages are refused, at the ports that door_allowed_hosts names, too",
    )
    door_tei_model: str = Field(
        "",
        description="models for the routes of text-embeddings-inference, whose requests name no model, separated by "
        "commas: the first that supports the route is used; default: the only served model that supports it",
    )
    auth_mode: Literal["none", "static", "token"] = Field(
        "none",
        description="none, or token, which requires one of auth_tokens on door_port and for reads on controller_port. "
        "With token, Triton's ports and controller_port listen on 127.0.0.1 unless triton_host is set. static is an "
        "alias of token",
    )
    auth_tokens: str = Field(
        "",
        validate_default=True,
        description="bearer tokens of clients, separated by commas, or @FILE to read them from a file, one per line, "
        "again once it has changed; SIE_AUTH_TOKEN holds one more",
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
