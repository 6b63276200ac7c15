"""Specification of a model for its stages: one frozen value, passed as JSON in config.pbtxt.

Standard library only, so that cold stage processes stay small.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

# Engines. AUTO chooses by a model's files and by measurement.
AUTO, TORCH, ONNX = "auto", "torch", "onnx"

SPEC_PARAMETER = "sie_spec"

# Number formats of a forward pass.
Precision = Literal["float32", "bfloat16", "float16", "int8"]

# Maximum length of a model whose file sets none: the limit of its checkpoint applies.
ANY_LENGTH = 10_000_000

# A larger batch does not make a CPU faster: measured in docs/decisions/batching.md.
CPU_ADMISSION_COST = 2048

# Engine of models that another server computes.
REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Settings of the stages, resolved when the repository is rendered. Names and defaults are those of `Settings`.

    `max_sub_batch_cost` is the maximum cost of a sub-batch, in the model's cost unit; 0: calibrated.
    At most `max_concurrent_requests` of all models are in progress, and `max_requests_per_model` of each; 0: no limit
    of its own. A forward pass, and a batch of Triton's, hold at most `max_batch_requests` requests. `cpu_threads` are
    shared by all models in use; 0: all cores.
    `preprocessor_workers` threads of a model tokenize bulk requests and decode at once, and `image_workers` of them
    decode images and audio, of all models together one more; images in at most `max_decoded_bytes`, of all models
    together. A worker is ended if a forward pass takes longer than `forward_timeout_s`, or a load longer than
    `load_timeout_s`. `device` may name several GPUs, with commas; each load gets one of them. `engine` auto: chosen by
    the checkpoint's files and by measurement. `precision` is the model's, else that of the settings; empty: float32 on
    a CPU, float16 on a GPU. A model has at most `max_loras_per_model` LoRA adapters in memory; with `allow_client_lora`
    a request may name any adapter on the hub. `status_dir` empty: a directory of the running tritonserver. `loras_dir`
    empty: no adapters can be added to the running server. `cache_dir` and `environments_dir` empty: the user's
    directories for caches and data. `cache_dir` holds graphs and converted weights; `measurements_dir` empty:
    measurements too. `cluster_cache` is the URL of a cache of weights that servers share; empty: none. With
    `disk_cache_enabled`, the least recently used weights are removed while more than `disk_pressure_threshold_percent`
    of the disk are in use.
    """

    device: str = "auto"
    precision: str = ""
    attention_backend: str = "auto"
    engine: str = AUTO
    max_sub_batch_cost: int = 0
    recalibrate: bool = False
    cpu_threads: int = 0
    max_concurrent_requests: int = 512
    max_requests_per_model: int = 0
    max_batch_requests: int = 64
    forward_timeout_s: float = 120.0
    load_timeout_s: float = 600.0
    preprocessor_workers: int = 4
    image_workers: int = 4
    max_image_bytes: int = 64 * 1024**2
    max_image_pixels: int = 100_000_000
    max_pages: int = 100
    max_decoded_bytes: int = 1_500_000_000
    max_document_bytes: int = 64 * 1024**2
    max_audio_bytes: int = 64 * 1024**2
    max_audio_s: float = 600.0
    hf_fallback: bool = True
    cluster_cache: str = ""
    disk_cache_enabled: bool = True
    disk_pressure_threshold_percent: float = 85.0
    max_loras_per_model: int = 10
    allow_client_lora: bool = False
    status_dir: str = ""
    loras_dir: str = ""
    cache_dir: str = ""
    measurements_dir: str = ""
    environments_dir: str = ""

    @property
    def request_limit(self) -> int:
        """Maximum number of requests of one model in progress."""
        return min(self.max_requests_per_model or self.max_concurrent_requests, self.max_concurrent_requests)


@dataclass(frozen=True, slots=True)
class MuveraConfig:
    """Parameters of MUVERA encodings.

    `num_simhash_projections` k makes 2^k partitions. `projection_dim` and `final_projection_dim` None: no projection.
    `center_tokens` subtracts the mean of an item's vectors, for models whose vectors are similar to each other.
    """

    num_repetitions: int = 40
    num_simhash_projections: int = 6
    projection_dim: int | None = None
    final_projection_dim: int | None = 10240
    seed: int = 42
    normalize: bool = False
    center_tokens: bool = False

    @property
    def num_partitions(self) -> int:
        return 1 << self.num_simhash_projections

    def dim(self, token_dim: int) -> int:
        """Return the dimension of an encoding made of vectors of dimension `token_dim`.

        >>> MuveraConfig(num_repetitions=2, num_simhash_projections=3, final_projection_dim=None).dim(16)
        256
        """
        blocks = self.num_repetitions * self.num_partitions * (self.projection_dim or token_dim)
        return self.final_projection_dim or blocks


@dataclass(frozen=True, slots=True)
class Profile:
    """Defaults for requests. All profiles of a model share its weights.

    `parameters` are default request parameters. A template contains `{text}` once, and may contain `{instruction}`;
    empty: the prompts in the model's own files. `query_instruction` fills the template of queries. `instruction` is for
    all texts and overrides `query_instruction`; without a template it replaces the model's own prompts. None: not set.
    """

    name: str = "default"
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    query_template: str = ""
    document_template: str = ""
    query_instruction: str = ""
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Another server that computes a model, whose name there is `model`.

    `url` is the base of the API's paths. `api_key_env` names the environment variable with the API key; the key itself
    is never stored.
    """

    url: str
    model: str
    api_key_env: str = ""

    @property
    def is_private(self) -> bool:
        """True if the connection is encrypted or local, so that the API key cannot be read on the network.

        >>> [Endpoint(url, "m").is_private for url in ("https://host", "http://[::1]", "http://127.0.0.1:1", "http://a")]
        [True, True, True, False]
        """
        from urllib.parse import urlsplit  # here, because cold stages do not need it

        parts = urlsplit(self.url)
        return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Resolved specification of one model. Lengths are in tokens.

    `weights` is a directory, `package://module/path` or `hub://org/name[@revision]`. `family` is the name of a built-in
    family, or `module:Class`; `options` are the family's own, as its schema defines them. `engine` computes the
    encoder; ONNX Runtime reads `onnx_file`, or the default file if empty. `tasks` are names of verbs. `dims` maps the
    output types of encode to their dimensions; the int8 and uint8 forms of the types in `scaled` come with scales.
    `score_modes` are the ways to score by outputs, the default first; a model that scores without any reads query and
    text together. `inputs` are the kinds of input that the model reads. `environment` is the one in which its worker
    runs; empty: the server's. Profiles in `apart` are separate models named `model.profile`. `allow_pickle` "tensors":
    weights that exist only as pickles are converted to safetensors; empty: they are refused. `loras` maps the names of
    LoRA adapters that requests may use to locations, written like `weights`. A model with an `endpoint` is computed
    there, and only the small files of `weights` are read.
    """

    model: str
    weights: str
    family: str
    dims: Mapping[str, int]
    max_sequence_length: int
    max_batch_cost: int
    batch_cost: str = "tokens"
    options: Mapping[str, Any] = field(default_factory=dict)
    engine: str = TORCH
    onnx_file: str = ""
    environment: str = ""
    inputs: tuple[str, ...] = ("text",)
    scaled: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("encode",)
    score_modes: tuple[str, ...] = ()
    muvera: MuveraConfig | None = None
    allow_pickle: str = ""
    profiles: tuple[Profile, ...] = (Profile(),)
    apart: tuple[str, ...] = ()
    loras: Mapping[str, str] = field(default_factory=dict)
    endpoint: Endpoint | None = None
    runtime: Runtime = Runtime()

    def on(self, device: str) -> "ModelSpec":
        """Return the same specification with another `Runtime.device`."""
        return replace(self, runtime=replace(self.runtime, device=device))

    def profile(self, name: str) -> Profile:
        """Return the profile `name`; KeyError if it does not exist."""
        return {profile.name: profile for profile in self.profiles}[name]

    @property
    def revision(self) -> str | None:
        """Revision of a model of the hub, if its model file names one."""
        return self.weights.partition("@")[2] or None if self.weights.startswith("hub://") else None

    @property
    def admission_cost(self) -> int:
        """Maximum cost of a batch in Triton's queue: about one forward pass, so that the next forms meanwhile."""
        is_computed_here = self.runtime.device == "cpu" and self.endpoint is None
        usual = CPU_ADMISSION_COST if is_computed_here else self.max_batch_cost
        return min(self.max_batch_cost, self.runtime.max_sub_batch_cost or usual)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ModelSpec":
        """Return the specification; ValueError for a text that this version has not written."""
        try:
            return cls._of(json.loads(text))
        except (TypeError, LookupError, AttributeError, RecursionError) as exc:
            raise ValueError(f"is not a specification of this version: {exc}") from exc

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> "ModelSpec":
        for f in fields(cls):
            if isinstance(raw.get(f.name), list):
                raw[f.name] = tuple(raw[f.name])
        raw["profiles"] = tuple(Profile(**each) for each in raw["profiles"])
        raw["runtime"] = Runtime(**raw["runtime"])
        raw["muvera"] = MuveraConfig(**raw["muvera"]) if raw["muvera"] else None
        raw["endpoint"] = Endpoint(**raw["endpoint"]) if raw["endpoint"] else None
        return cls(**raw)
