"""Settings of gateways and sidecars; they are part of the server's settings."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, field_validator

from sie_triton.settings.object_store import check_store_url, is_store_url
from sie_triton.settings.secrets import checked
from sie_triton.settings.sources import IN_BYTES, Bytes

NAME = r"^[A-Za-z0-9_-]{1,64}$"
NAME_OR_NONE = r"^[A-Za-z0-9_-]{0,64}$"


class ClusterSettings(BaseModel):
    """Settings of a cluster. Field descriptions are the help texts of the command line."""

    nats_url: str = Field("nats://127.0.0.1:4222", description="comma-separated addresses of the queue's NATS servers")
    nats_user: str = Field("", description="user of NATS, such as gateway or sidecar")
    nats_password: str = Field("", description="password of nats_user, or @FILE, which is read at each connection")
    nats_credentials: Path | None = Field(
        None, description="file with NATS' credentials (.creds), in place of user and password"
    )
    nats_tls_ca: Path | None = Field(
        None, description="certificates of the authorities that sign for NATS servers; turns TLS on"
    )
    pool: str = Field("default", pattern=NAME, description="pool of workers, which share one queue")
    worker_id: str = Field(
        "", pattern=NAME_OR_NONE, description="name of this worker, gateway or sidecar; default: the host's name"
    )
    machine_profile: str = Field(
        "", pattern=NAME_OR_NONE, description="kind of machine that requests can ask for; default: the pool's name"
    )
    worker_metrics_port: int = Field(
        9095, ge=1, le=65535, description="the sidecar's port, for /metrics, /healthz and /readyz"
    )
    health_publish_interval_ms: int = Field(
        1000,
        ge=100,
        le=60_000,
        description="interval of heartbeats, in milliseconds; after three missing ones a worker's models go to others",
    )
    adaptive_target_p50_ms: float = Field(
        50,
        gt=0,
        le=10_000,
        description="median wait for a forward pass, in milliseconds, up to which a sidecar fetches work",
    )
    adaptive_min_quantum_ms: float = Field(
        0,
        ge=0,
        le=1000,
        description="minimum wait of a request at a sidecar for others to be joined with, in milliseconds; it grows "
        "below adaptive_target_p50_ms, and is halved above; SIE's default: 2",
    )
    adaptive_max_quantum_ms: float = Field(
        0, ge=0, le=1000, description="maximum of that wait, in milliseconds; SIE's default: 15"
    )
    batcher_coalesce_ms: float = Field(
        0,
        ge=0,
        le=1000,
        description="further wait of a request at a sidecar for others, in milliseconds; 0: requests are joined "
        "while others are at Triton; SIE's default: 5",
    )
    max_concurrent_batches: int = Field(
        0,
        ge=0,
        le=1000,
        description="maximum number of concurrent calls to Triton, per model; further requests are joined; 0: 1 on a "
        "CPU, 4 on a GPU",
    )
    batcher_max_batch_requests: int = Field(
        64, ge=1, le=512, description="maximum number of requests joined into one call; 1 turns joining off"
    )
    gateway_url: str = Field("", description="gateway whose cluster sie-triton status shows")
    gateway_configured_gpus: str = Field(
        "",
        description="comma-separated machine profiles that can be started; a request for one without a worker gets "
        "PROVISIONING",
    )
    gateway_configured_pools: str = Field(
        "",
        description="comma-separated pools that can be started; a request for one without a worker gets "
        "PROVISIONING, and counts as demand",
    )
    pool_admission_enabled: bool = Field(True, description="let this worker join pools that clients lease")
    config_port: int = Field(8081, ge=1, le=65535, description="the config service's HTTP port")
    config_service_url: str = Field(
        "",
        description="config service for sie-triton cluster; default: config_port of this machine",
    )
    config_producer: str = Field("sie-config", pattern=NAME, description="name of this config service in its changes")
    nats_config_trusted_producers: str = Field(
        "sie-config", description="comma-separated names of config services whose changes are applied"
    )
    worker_config_poll_interval_ms: int = Field(
        30_000,
        ge=100,
        le=3_600_000,
        description="interval at which gateways and sidecars look for missed changes of model files, in milliseconds",
    )
    worker_config_full_export_interval_ms: int = Field(
        30_000,
        ge=0,
        le=3_600_000,
        description="interval at which a sidecar compares its server's model files with the config service's, in "
        "milliseconds; 0: only at its start",
    )
    payload_store_url: str = Field(
        "",
        description="store of requests larger than a message of the queue: s3://, gs:// or file:///directory; "
        "default: they are refused",
    )
    queue_replicas: int = Field(
        1,
        ge=1,
        le=5,
        description="number of NATS servers that store each request; for the config service",
    )
    queue_max_bytes: Bytes = Field(
        1024**3,
        ge=1024**2,
        description=f"maximum size of a pool's queue, {IN_BYTES}; further requests are refused; for the config service",
    )
    queue_max_messages: int = Field(
        100_000,
        ge=1,
        description="maximum number of requests in a pool's queue; further ones are refused; for the config service",
    )

    @field_validator("nats_password")
    @classmethod
    def _check_password(cls, value: str) -> str:
        return checked(value)

    @field_validator("payload_store_url", mode="before")
    @classmethod
    def _store_url(cls, value: Any) -> Any:
        if not value:
            return value
        return check_store_url(str(value) if is_store_url(value) else Path(str(value)).absolute().as_uri())
