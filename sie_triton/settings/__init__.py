"""All settings of the server in one frozen object; precedence: flag, environment variable, settings file, default."""

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_cache_path, user_data_path
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from sie_triton.contract.did_you_mean import did_you_mean
from sie_triton.contract.spec import Precision, Runtime
from sie_triton.errors import SettingsError
from sie_triton.settings.batches import BatchSettings
from sie_triton.settings.cluster import ClusterSettings
from sie_triton.settings.door import DoorSettings
from sie_triton.settings.inputs import InputSettings
from sie_triton.settings.object_store import check_store_url, is_store_url, url_of_path
from sie_triton.settings.secrets import checked, tokens
from sie_triton.settings.sources import (
    AUTH_TOKEN,
    FILE_VARIABLE,
    IN_BYTES,
    PREFIX,
    Bytes,
    complaint,
    default_models_dir,
    file_settings,
    variable,
    why_not_read,
)
from sie_triton.settings.telemetry import TelemetrySettings
from sie_triton.system.host.device import choose_devices
from sie_triton.system.host.speed import speedups

LOOPBACK = "127.0.0.1"

DEVICE = re.compile(r"auto|cpu|cuda|cuda:\d+(,cuda:\d+)*|(GPU|MIG)-[\w/-]+(,(GPU|MIG)-[\w/-]+)*")

# Token that the launcher generates for one server and its controller. It is passed in the environment, which other
# users cannot read.
CONTROL_KEY = "sie-control"
CONTROL_TOKEN = "SIE_CONTROL_TOKEN"  # noqa: S105

# Environment variable of a process with the data directory of the launcher that it belongs to.
SERVED_FROM = "SIE_SERVED_FROM"


class Settings(DoorSettings, BatchSettings, InputSettings, TelemetrySettings, ClusterSettings, BaseSettings):
    """Settings of the server. Field descriptions are the help texts of the command line."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="IPv4 address or host name on which the server listens")
    triton_host: str = Field(
        "",
        description="address of Triton and the controller; default: host, or 127.0.0.1 if auth_mode is token",
    )
    http_port: int = Field(8000, ge=1, le=65535, description="Triton's HTTP port")
    grpc_port: int = Field(8001, ge=1, le=65535, description="Triton's gRPC port")
    metrics_port: int = Field(8002, ge=1, le=65535, description="Triton's Prometheus port")
    allow_remote: bool = Field(False, description="allow the embedded Triton to listen on a non-loopback address")
    data_dir: Path = Field(
        default_factory=lambda: user_cache_path("sie-triton"),
        description="directory of logs, rendered models, and the only copy of added model files and LoRA adapters",
    )
    models_dir: Path | None = Field(
        default_factory=lambda: default_models_dir(Path("models")),
        description="directory or URL (s3://, gs://, file://) of your model files; a running server applies changes; "
        "default: ./models, if it has a model file",
    )
    environments_dir: Path = Field(
        default_factory=lambda: user_data_path("sie-triton") / "environments",
        description="directory of the environments that `sie-triton env` makes",
    )
    model_filter: str = Field(
        "",
        description="comma-separated patterns, such as BAAI/*, of the models to serve; a name without a * is served "
        "from the start",
    )
    serve_known: bool = Field(
        True,
        description="serve a known model (models ls --known) as soon as a request names it",
    )
    allow_any_model: bool = Field(
        False, description="serve any model on the hub as soon as a request names it; needs serve_known"
    )
    max_mentioned_models: int = Field(
        32,
        ge=1,
        le=1000,
        description="maximum number of models that are served because requests named them; beyond it the least "
        "recently used one is removed",
    )
    tritonserver: Path | None = Field(
        None,
        description="tritonserver to run; default: the one in /opt/tritonserver, else the embedded one",
    )
    device: str = Field(
        "auto",
        description="devices of models: auto (all GPUs, else the CPU), cpu, cuda (all GPUs), or GPUs by number or UUID,"
        " such as cuda:0,cuda:2",
    )
    gpu_type: str = Field(
        "",
        max_length=100,
        pattern=r"^[\w.-]*$",
        description="GPU type in the status, such as l4, a100-80gb or h100; default: from the GPU's name",
    )
    gpu_count: int | None = Field(
        None, ge=0, le=1000, description="number of GPUs in the status; default: those that models run on"
    )
    bundle: str = Field(
        "default",
        max_length=100,
        pattern=r"^[\w.-]+$",
        description="serve only the models of bundles/NAME.yaml in models_dir; default without such a file: all",
    )
    default_compute_precision: Precision | None = Field(
        None,
        description="number format if the model file names none; default: float32 on a CPU, float16 on a GPU; int8: "
        "8 bits, on CPUs with AVX-512 VNNI",
    )
    attention_backend: Literal["auto", "flash_attention_2", "varlen", "native", "sdpa", "eager"] = Field(
        "auto",
        description="attention kernel; auto: the first of flash_attention_2, varlen, native and sdpa that can run; "
        "otherwise models that do not support it are refused, and no graphs are made",
    )
    engine: Literal["auto", "torch", "onnx"] = Field(
        "auto",
        description="torch, or onnx for models with ONNX files; auto: by a model's files, and for small batches the "
        "faster one",
    )
    forward_timeout_s: float = Field(
        120, gt=0, description="timeout of a forward pass, in seconds; beyond it its worker is replaced"
    )
    load_timeout_s: float = Field(
        600,
        gt=0,
        description="timeout of loading weights, without their download, in seconds; the first request after 30 s "
        "loads again",
    )
    measurements_dir: Path | None = Field(
        None,
        description="directory of what loads have measured, which servers of one user may share; default: "
        "measurements in data_dir",
    )
    recalibrate: bool = Field(False, description="repeat the measurements of a model whenever it is loaded")
    max_copies: int = Field(
        16,
        ge=0,
        le=64,
        description="maximum copies of a busy model, on GPUs beside its own, where memory is free; 0: none",
    )
    cpu_threads: int = Field(
        0,
        ge=0,
        description="CPU threads of all forward passes together; 0: one for each processor that affinity and cgroups "
        "allow",
    )
    max_loras_per_model: int = Field(
        10, ge=1, le=1000, description="maximum LoRA adapters of a model in memory; the least recently used is removed"
    )
    allow_client_lora: bool = Field(
        False, description="let requests name any LoRA adapter on the model hub, which is downloaded"
    )
    controller_port: int = Field(8003, ge=1, le=65535, description="the controller's HTTP port")
    admin_token: str = Field(
        "",
        description="bearer token for changes of models, or @FILE; default: generated at each start, in data_dir",
    )
    api_key_variables: str = Field(
        "",
        description="comma-separated patterns of environment variables that an added model may send to its endpoint "
        "as an API key",
    )
    memory_limit_bytes: Bytes = Field(
        0,
        ge=0,
        description=f"memory limit {IN_BYTES} of tritonserver, its stages and the models; on a GPU of the models on "
        "the card; 0: the memory of the GPU, container or machine",
    )
    memory_pressure_threshold_percent: float = Field(
        85,
        gt=0,
        le=100,
        description="percentage of memory_limit_bytes above which models are evicted",
    )
    min_residency_s: float = Field(
        5,
        ge=0,
        description="minimum time before a loaded model is evicted, in seconds; without effect above 97 % of "
        "memory_limit_bytes",
    )
    idle_evict_s: float = Field(0, ge=0, description="evict models that were not used for so many seconds; 0: never")
    preload_models: str = Field(
        "",
        description="comma-separated models to serve, and to load before the server is ready",
    )
    fork_stubs: bool = Field(
        True,
        description="start Triton's Python processes from a fork server; needs compiled code or a C compiler",
    )
    hf_fallback: bool = Field(True, description="download missing weights from the model hub")
    local_cache: Path | None = Field(
        None,
        description="directory of downloaded weights; default: the hub's cache (HF_HUB_CACHE, or hub in HF_HOME)",
    )
    cluster_cache: str = Field(
        "",
        description="cache of weights that servers share: s3://bucket/prefix, gs://bucket/prefix or file:///directory",
    )

    disk_cache_enabled: bool = Field(
        True,
        description="remove the least recently used weights while the disk is too full",
    )
    disk_pressure_threshold_percent: float = Field(
        85,
        gt=0,
        le=100,
        description="percentage of the disk above which weights are removed",
    )

    @field_validator("host", "triton_host")
    @classmethod
    def _resolved(cls, value: str, info: ValidationInfo) -> str:
        """Resolve a host name to an IPv4 address: Triton would turn a name into 255.255.255.255."""
        if not value and info.field_name == "triton_host":
            return value
        try:
            return str(socket.getaddrinfo(value, None, socket.AF_INET)[0][4][0])
        except (OSError, UnicodeError) as exc:
            raise ValueError("must be an IPv4 address, or a host name that resolves to one") from exc

    @field_validator("admin_token")
    @classmethod
    def _check_admin_token(cls, value: str, info: ValidationInfo) -> str:
        value = checked(value)
        if set(tokens(value)) & set(tokens(info.data.get("auth_tokens", ""))):
            raise ValueError("is one of auth_tokens, which permit less; choose a different token")
        return value

    @field_validator("models_dir", mode="before")
    @classmethod
    def _check_models_dir(cls, value: Any) -> Any:
        return check_store_url(value) if is_store_url(value) else value

    @field_validator("cluster_cache")
    @classmethod
    def _check_cluster_cache(cls, value: str) -> str:
        return check_store_url(value) if value else value

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        if value == "mps":
            raise ValueError("mps cannot be used: Triton has no macOS build; use auto, cpu, cuda or cuda:N")
        names = words(value)
        if not DEVICE.fullmatch(",".join(names)):
            raise ValueError(
                "must be auto, cpu, cuda, or GPUs by number, such as cuda:0,cuda:2, or by UUID, such as GPU-0a1c,MIG-7b"
            )
        if len(set(names)) < len(names):
            raise ValueError("names a GPU twice")
        return ",".join(names)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, InitSettingsSource(settings_cls, file_settings())

    @property
    def models_url(self) -> str:
        """URL of models_dir; empty if it is an ordinary directory."""
        return url_of_path(self.models_dir)

    @property
    def inner_host(self) -> str:
        """Address on which Triton's ports and the controller's port listen."""
        return self.triton_host or (LOOPBACK if self.asks_for_token else self.host)

    @property
    def runtime(self) -> Runtime:
        """Settings of the stages, resolved for this machine."""
        return replace(
            self.portable_runtime,
            device=",".join(self.devices),
            status_dir=str(self.status_dir),
            loras_dir=str(self.loras_dir),
            cache_dir=str(self.data_dir.absolute()),
            measurements_dir=str((self.measurements_dir or self.data_dir / "measurements").absolute()),
            environments_dir=str(self.environments_dir.absolute()),
        )

    @property
    def devices(self) -> Sequence[str]:
        """Devices that models run on: cpu alone, or names of GPUs; status records count them from 0."""
        return choose_devices(self.device)

    @property
    def speedups(self) -> Sequence[str]:
        """Ways to compute faster on this machine that these settings leave open, one sentence each."""
        return speedups(self.runtime.device, self.engine, self.default_compute_precision or "")

    @property
    def portable_runtime(self) -> Runtime:
        """Settings of the stages without anything that depends on this machine."""
        given = {name: getattr(self, name) for name in STAGE_SETTINGS}
        return Runtime(**given, precision=self.default_compute_precision or "")

    @property
    def preloaded(self) -> frozenset[str]:
        return frozenset(words(self.preload_models))

    @property
    def name_patterns(self) -> tuple[str, ...]:
        return words(self.model_filter)

    @property
    def status_dir(self) -> Path:
        return self.data_dir.absolute() / "status"

    @property
    def loras_dir(self) -> Path:
        """Directory of the files that list the LoRA adapters added to the running server."""
        return self.data_dir.absolute() / "loras"

    @property
    def stub_dir(self) -> Path:
        """Directory of Triton's Python backend and of the fork server, if stubs are forked."""
        return self.data_dir.absolute() / "stubs" / "python"


# Settings that a rendered repository carries to its stages, named as in Runtime. Directories depend on the machine.
STAGE_SETTINGS = tuple(
    each.name for each in fields(Runtime) if each.name in Settings.model_fields and not each.name.endswith("_dir")
)


def words(text: str) -> tuple[str, ...]:
    """
    >>> words("a, b,")
    ('a', 'b')
    """
    return tuple(word.strip() for word in text.split(",") if word.strip())


def read_settings(**flags: Any) -> Settings:
    """Resolve the settings; a flag that is None was not given.

    SettingsError names each invalid setting, its value and the allowed values.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as exc:
        lines = (complaint(error, given, Settings.model_fields) for error in exc.errors())
        raise SettingsError("\n".join(lines)) from exc


def settings_of_server(**flags: Any) -> Settings:
    """Resolve the settings of a command that serves clients, as `read_settings` does.

    Raise SettingsError, too, if there are tokens that no client would need.
    """
    settings = read_settings(**flags)
    if settings.auth_tokens and not settings.asks_for_token:
        raise SettingsError(
            f"{variable('auth_tokens')} is set, but {variable('auth_mode')} is none, so that clients would need no "
            f"token; set {variable('auth_mode')}=token, or leave out {variable('auth_tokens')}"
        )
    return settings


def unknown_variables() -> list[str]:
    """Return a line for each variable that begins with SIE_ and that this version does not read."""
    known = {variable(name) for name in Settings.model_fields} | {FILE_VARIABLE, AUTH_TOKEN, CONTROL_TOKEN, SERVED_FROM}
    given = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    return [
        f"{name} has no effect here: {why}"
        if (why := why_not_read(name))
        else f"{name} is not a setting of this version, and is ignored{did_you_mean(name, known)}"
        for name in given
    ]
