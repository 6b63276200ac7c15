"""Settings of the door, SIE's own HTTP; part of those of the server."""

from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from sie_triton.setting_sources import read_secret


class DoorSettings(BaseModel):
    """Field descriptions are the help texts of the command line."""

    door: bool = Field(True, description="serve SIE's own HTTP routes too, by processes beside Triton")
    door_port: int = Field(8080, ge=1, le=65535, description="port of SIE's own HTTP routes")
    door_workers: int = Field(1, ge=1, le=64, description="processes that share door_port")
    door_timeout_s: float = Field(
        25,
        gt=0,
        le=3600,
        description="a request to door_port is answered within that, unless its X-Request-Timeout says otherwise",
    )
    door_max_body_bytes: int = Field(64 * 1024**2, ge=1, description="most bytes of the body of a request to door_port")
    door_max_memory_bytes: int = Field(
        1024**3,
        ge=1,
        description="memory limit of all requests to door_port in progress, in bytes: bodies, their decoded content "
        "and answers; beyond it a request gets 503 with Retry-After",
    )
    door_max_connections: int = Field(
        2048,
        ge=1,
        le=1_000_000,
        description="maximum number of connections to door_port, lowered to the process's limit of open files; beyond "
        "it the connection that has been idle longest is closed",
    )
    door_allowed_hosts: str = Field(
        "",
        description="allowed Host headers of requests to door_port, separated by commas; default: any, or only "
        "localhost and addresses while the door listens on loopback without tokens",
    )
    door_max_items: int = Field(10_000, ge=1, description="most items of a request to door_port")
    door_cors_origins: str = Field(
        "", description="web pages that may call door_port: origins as https://host, separated by commas; *: any"
    )
    door_tei_model: str = Field(
        "",
        description="models behind the routes of text-embeddings-inference, which name none, separated by commas: the "
        "first that can; default: the only one that can",
    )
    auth_mode: Literal["none", "static", "token"] = Field(
        "none",
        description="authentication of door_port: none, or, with static or token, one of auth_tokens, which also allow "
        "reads on controller_port; Triton's ports are then on 127.0.0.1 unless triton_host is set",
    )
    auth_tokens: str = Field(
        "",
        validate_default=True,
        description="bearer tokens for door_port, separated by commas, or @FILE with one token a line",
    )

    @property
    def asks_for_token(self) -> bool:
        return self.auth_mode != "none"

    @field_validator("auth_tokens", mode="before")
    @classmethod
    def _tokens_of_file(cls, value: Any) -> Any:
        return read_secret(value)

    @field_validator("auth_tokens")
    @classmethod
    def _there_are_some(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("auth_mode", "none") != "none" and not value.strip(", "):
            raise ValueError(f"auth_mode {info.data['auth_mode']} needs at least one token")
        return value
