"""Every setting of the server, in one frozen object: flag > environment > file > default."""

import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_cache_path, user_data_path
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from sie_triton.device import choose_device
from sie_triton.door_settings import DoorSettings
from sie_triton.errors import SettingsError
from sie_triton.setting_sources import FILE_VARIABLE, PREFIX, complaint, file_settings, read_secret, variable
from sie_triton.spec import Runtime

LOOPBACK = "127.0.0.1"

DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")

# Made by the launcher for one server and its controller: in the environment, where other users cannot see it.
CONTROL_KEY = "sie-control"
CONTROL_TOKEN = "SIE_CONTROL_TOKEN"  # noqa: S105

# Tells which launcher's a process is: the data directory.
SERVED_FROM = "SIE_SERVED_FROM"


class Settings(DoorSettings, BaseSettings):
    """Field descriptions are the help texts of the command line."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="address to listen on, or a name of it")
    triton_host: str = Field(
        "",
        description="address on which Triton's three ports and the controller's port listen; default: host, or "
        "127.0.0.1 with auth_mode static or token, because Triton itself checks no token",
    )
    http_port: int = Field(8000, ge=1, le=65535, description="Triton's HTTP port")
    grpc_port: int = Field(8001, ge=1, le=65535, description="Triton's gRPC port")
    metrics_port: int = Field(8002, ge=1, le=65535, description="Triton's Prometheus port")
    allow_remote: bool = Field(False, description="let the embedded Triton listen on an address that is not loopback")
    data_dir: Path = Field(
        default_factory=lambda: user_cache_path("sie-triton"),
        description="where the rendered repository, added model files, logs and status records are kept",
    )
    models_dir: Path | None = Field(
        None, description="directory of your own model files (*.yaml, *.yml); a running server follows its changes"
    )
    environments_dir: Path = Field(
        default_factory=lambda: user_data_path("sie-triton") / "environments",
        description="where `sie-triton env` keeps the worker environments that model files name",
    )
    model_filter: str = Field(
        "", description="serve only the models of models_dir whose names match: patterns as BAAI/*, separated by commas"
    )
    tritonserver: Path | None = Field(
        None, description="tritonserver to run; default: the one in /opt/tritonserver, else the embedded one"
    )
    device: str = Field(
        "auto",
        description="the one device of all models: auto, cpu, cuda or cuda:N; auto is the first GPU, else the CPU",
    )
    default_compute_precision: Literal["float32", "bfloat16", "float16"] | None = Field(
        None,
        description="number format of the forward pass where the model file names none; "
        "default: float32 on a CPU, float16 on a GPU",
    )
    attention_backend: Literal["auto", "flash_attention_2", "varlen", "native", "sdpa", "eager"] = Field(
        "auto", description="attention kernel; one that cannot run here is replaced by one that can"
    )
    engine: Literal["auto", "torch", "onnx"] = Field(
        "auto",
        description="what computes models: PyTorch, or ONNX Runtime for those that have ONNX files; auto: either, by "
        "what a model has, and small batches by the faster of both, as measured",
    )
    max_batch_requests: int = Field(64, ge=1, le=4096, description="most requests in one batch")
    max_concurrent_requests: int = Field(
        512, ge=1, le=1_000_000, description="most requests of a model in progress; more are refused at once"
    )
    forward_timeout_s: float = Field(
        120, gt=0, description="a forward pass that takes longer is ended, and its process replaced"
    )
    load_timeout_s: float = Field(
        600, gt=0, description="loading a model's weights that takes longer is ended, and tried again later"
    )
    max_batch_wait_ms: float = Field(0, ge=0, le=10_000, description="how long an open batch waits for more requests")
    max_sub_batch_cost: int = Field(
        0,
        ge=0,
        description="most cost at once on the device, of which a token is one unless the model file says otherwise; "
        "0: calibrated",
    )
    recalibrate: bool = Field(False, description="measure each model anew when it is loaded")
    cpu_threads: int = Field(0, ge=0, description="CPU threads of all models' forward passes together; 0: all cores")
    image_workers: int = Field(4, ge=1, le=256, description="threads of each model that decode images and sounds")
    max_image_bytes: int = Field(64 * 1024**2, ge=1, description="most bytes of one image file")
    max_image_pixels: int = Field(100_000_000, ge=1, description="most pixels of one image, by its header")
    max_pages: int = Field(100, ge=1, description="most pages that are read of one PDF")
    max_decoded_bytes: int = Field(
        1_500_000_000,
        ge=1,
        description="memory limit for decoding images of one model, in bytes: beyond it images wait, and an image that "
        "alone takes more (9 to 17 bytes a pixel, by its format) is refused",
    )
    max_document_bytes: int = Field(64 * 1024**2, ge=1, description="most bytes of one document")
    max_audio_bytes: int = Field(64 * 1024**2, ge=1, description="most bytes of one audio file")
    max_audio_s: float = Field(600, gt=0, le=86_400, description="most seconds that one audio file takes")
    max_loras_per_model: int = Field(
        10, ge=1, le=1000, description="most LoRA adapters that a model has in memory; the least recently used one goes"
    )
    allow_client_lora: bool = Field(
        False, description="let a request name any LoRA adapter of the model hub, by its id, and have it fetched"
    )
    controller_port: int = Field(8003, ge=1, le=65535, description="the controller's HTTP port")
    admin_token: str = Field(
        "",
        description="bearer token for load, evict and changes of models; default: made by the controller, and found in "
        "data_dir; @FILE reads it from a file",
    )
    api_key_variables: str = Field(
        "",
        description="environment variables whose keys a model added to the running server may send to its endpoint: "
        "patterns such as EXAMPLE_*, separated by commas",
    )
    memory_limit_bytes: int = Field(0, ge=0, description="memory that models share; 0: all there is")
    memory_pressure_threshold_percent: float = Field(
        85, gt=0, le=100, description="share of the memory above which the least recently used models are evicted"
    )
    min_residency_s: float = Field(5, ge=0, description="a model stays this long before it makes room for another")
    idle_evict_s: float = Field(0, ge=0, description="evict a model that was not used for so long; 0: never")
    preload_models: str = Field("", description="models to load at start-up, separated by commas")
    open_steps: bool = Field(
        False, description="let clients call the steps of a model by themselves, to measure one; not for production"
    )
    fork_stubs: bool = Field(
        True, description="fork Triton's Python processes from one that has imported what they need; needs a C compiler"
    )
    hf_fallback: bool = Field(True, description="fetch missing weights from the model hub")

    @field_validator("host", "triton_host")
    @classmethod
    def _resolved(cls, value: str, info: ValidationInfo) -> str:
        """Triton takes addresses only: of a name it makes 255.255.255.255."""
        if not value and info.field_name == "triton_host":
            return value
        try:
            return str(socket.getaddrinfo(value, None, socket.AF_INET)[0][4][0])
        except (OSError, UnicodeError) as exc:
            raise ValueError("is no IPv4 address, and no name of one") from exc

    @field_validator("admin_token", mode="before")
    @classmethod
    def _token_of_file(cls, value: Any) -> Any:
        return read_secret(value)

    @field_validator("admin_token")
    @classmethod
    def _apart(cls, value: str, info: ValidationInfo) -> str:
        if value and value in words(info.data.get("auth_tokens", "")):
            raise ValueError("is one of auth_tokens, which may do less; give it to nobody else")
        return value

    @field_validator("device")
    @classmethod
    def _is_device(cls, value: str) -> str:
        if value == "mps":
            raise ValueError("mps cannot be used: Triton has no macOS build; use auto, cpu, cuda or cuda:N")
        if not DEVICE.fullmatch(value):
            raise ValueError("must be auto, cpu, cuda or cuda:N, where N is the number of a GPU, such as cuda:0")
        return value

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
    def inner_host(self) -> str:
        """Address of Triton's ports and of the controller's port."""
        return self.triton_host or (LOOPBACK if self.asks_for_token else self.host)

    @property
    def runtime(self) -> Runtime:
        """What the stages obey on this machine."""
        return replace(
            self.portable_runtime,
            device=choose_device(self.device),
            status_dir=str(self.status_dir),
            loras_dir=str(self.loras_dir),
            cache_dir=str(self.data_dir.absolute()),
            environments_dir=str(self.environments_dir.absolute()),
        )

    @property
    def portable_runtime(self) -> Runtime:
        """What the stages obey on a machine that is not known yet: only what was asked for."""
        return Runtime(
            device=self.device,
            precision=self.default_compute_precision or "",
            attention=self.attention_backend,
            engine=self.engine,
            max_sub_batch_cost=self.max_sub_batch_cost,
            recalibrate=self.recalibrate,
            cpu_threads=self.cpu_threads,
            max_concurrent_requests=self.max_concurrent_requests,
            forward_timeout_s=self.forward_timeout_s,
            load_timeout_s=self.load_timeout_s,
            image_workers=self.image_workers,
            max_image_bytes=self.max_image_bytes,
            max_image_pixels=self.max_image_pixels,
            max_pages=self.max_pages,
            max_decoded_bytes=self.max_decoded_bytes,
            max_document_bytes=self.max_document_bytes,
            max_audio_bytes=self.max_audio_bytes,
            max_audio_s=self.max_audio_s,
            allow_hub=self.hf_fallback,
            open_steps=self.open_steps,
            max_loras=self.max_loras_per_model,
            allow_client_lora=self.allow_client_lora,
        )

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
        """Files of the LoRA adapters that were added to the running server."""
        return self.data_dir.absolute() / "loras"

    @property
    def stub_dir(self) -> Path:
        """Triton's Python backend where its stubs are forked, and their nursery."""
        return self.data_dir.absolute() / "stubs" / "python"


def words(text: str) -> tuple[str, ...]:
    """
    >>> words("a, b,")
    ('a', 'b')
    """
    return tuple(word.strip() for word in text.split(",") if word.strip())


def read_settings(**flags: Any) -> Settings:
    """Resolve the settings; flags that are None were not given.

    SettingsError names each bad variable, its value and what is legal.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as exc:
        lines = (complaint(error, given, Settings.model_fields) for error in exc.errors())
        raise SettingsError("\n".join(lines)) from exc


def unknown_variables() -> list[str]:
    """SIE_ variables in the environment that this version does not read."""
    known = {variable(name) for name in Settings.model_fields} | {FILE_VARIABLE, CONTROL_TOKEN, SERVED_FROM}
    return sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
