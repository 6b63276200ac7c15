"""Specification of a model for its stages: one frozen value, passed as JSON in config.pbtxt.

Standard library only, so that cold stage processes stay small.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

# Engines. AUTO chooses by a model's files and by measurement.
AUTO, TORCH, ONNX = "auto", "torch", "onnx"

# Parameter of a step's configuration that holds the model's specification.
SPEC_PARAMETER = "sie_spec"

# Number formats of a forward pass.
Precision = Literal["float32", "bfloat16", "float16", "int8"]

# Maximum length of a model whose file sets none: the limit of its checkpoint applies.
ANY_LENGTH = 10_000_000

# A larger batch does not make a CPU faster: measured in docs/decisions/batching.md.
CPU_ADMISSION_COST = 2048

# Engine of models that another server computes.
REMOTE = "remote"

# Task of models whose requests the door forwards to an endpoint.
GENERATE = "generate"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Settings of the stages, resolved when the repository is rendered. Names and defaults are those of `Settings`."""

    device: str = "auto"  # several GPUs with commas between them; each load gets one
    precision: str = ""  # the model's, else that of the settings; empty: float32 on a CPU, float16 on a GPU
    attention_backend: str = "auto"
    engine: str = AUTO  # auto: chosen by the checkpoint's files and by measurement
    max_sub_batch_cost: int = 0  # in the model's cost unit; 0: calibrated
    recalibrate: bool = False
    max_copies: int = 16  # of a busy model, on GPUs beside its own
    cpu_threads: int = 0  # shared by all models in use; 0: all cores
    max_concurrent_requests: int = 512  # of all models
    max_requests_per_model: int = 0  # 0: no limit of its own
    max_batch_requests: int = 64  # in a forward pass, and in a batch of Triton's
    forward_timeout_s: float = 120.0  # after which a worker is ended
    load_timeout_s: float = 600.0  # the same
    preprocessor_workers: int = 4  # threads of a model that tokenize bulk requests and decode at once
    image_workers: int = 4  # those of them that decode images and audio; of all models together one more
    max_image_bytes: int = 64 * 1024**2
    max_image_pixels: int = 100_000_000
    max_pages: int = 100
    max_decoded_bytes: int = 1_500_000_000  # of the images that all models together decode at once
    max_document_bytes: int = 64 * 1024**2
    max_audio_bytes: int = 64 * 1024**2
    max_audio_s: float = 600.0
    hf_fallback: bool = True
    cluster_cache: str = ""  # URL of a cache of weights that servers share; empty: none
    disk_cache_enabled: bool = True  # the least recently used weights are removed while the disk is too full
    disk_pressure_threshold_percent: float = 85.0
    max_loras_per_model: int = 10  # in memory
    allow_client_lora: bool = False  # a request may name any adapter on the hub
    status_dir: str = ""  # empty: a directory of the running tritonserver
    loras_dir: str = ""  # empty: no adapters can be added to the running server
    cache_dir: str = ""  # of graphs and converted weights; empty: the user's directory for caches
    measurements_dir: str = ""  # empty: measurements too are in `cache_dir`
    environments_dir: str = ""  # empty: the user's directory for data

    @property
    def request_limit(self) -> int:
        """Maximum number of requests of one model in progress."""
        return min(self.max_requests_per_model or self.max_concurrent_requests, self.max_concurrent_requests)


@dataclass(frozen=True, slots=True)
class MuveraConfig:
    """Parameters of MUVERA encodings."""

    num_repetitions: int = 40
    num_simhash_projections: int = 6  # k of them make 2^k partitions
    projection_dim: int | None = None  # None: no projection
    final_projection_dim: int | None = 10240  # the same
    seed: int = 42
    normalize: bool = False
    # Subtract the mean of an item's vectors, for models whose vectors are similar to each other
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
    """Defaults for requests. All profiles of a model share its weights."""

    name: str = "default"
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)  # of requests
    query_template: str = ""  # contains `{text}` once, perhaps `{instruction}`; empty: the model's own prompts
    document_template: str = ""  # the same
    query_instruction: str = ""  # for the template of queries
    # For all texts, over `query_instruction`; without a template, in place of the model's own prompts
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Another server that computes a model."""

    url: str  # base of the API's paths
    model: str  # the model's name there
    api_key_env: str = ""  # environment variable with the API key; the key itself is never stored

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
    """Resolved specification of one model. Lengths are in tokens."""

    model: str
    weights: str  # a directory, `package://module/path` or `hub://org/name[@revision]`
    family: str  # name of a built-in family, or `module:Class`
    dims: Mapping[str, int]  # dimensions of the output types of encode
    max_sequence_length: int
    max_batch_cost: int
    batch_cost: str = "tokens"
    options: Mapping[str, Any] = field(default_factory=dict)  # the family's own, as its schema defines them
    engine: str = TORCH  # that computes the encoder
    onnx_file: str = ""  # for ONNX Runtime; empty: the default file
    environment: str = ""  # of the worker; empty: the server's
    inputs: tuple[str, ...] = ("text",)  # kinds of input that the model reads
    scaled: tuple[str, ...] = ()  # output types whose int8 and uint8 forms come with scales
    tasks: tuple[str, ...] = ("encode",)  # names of verbs
    # By outputs, the default first; a model that scores without any reads query and text together
    score_modes: tuple[str, ...] = ()
    muvera: MuveraConfig | None = None
    allow_pickle: str = ""  # tensors: weights that exist only as pickles are converted; empty: they are refused
    profiles: tuple[Profile, ...] = (Profile(),)
    apart: tuple[str, ...] = ()  # profiles that are separate models, named `model.profile`
    # LoRA adapters that requests may use → locations, written like `weights`
    loras: Mapping[str, str] = field(default_factory=dict)
    endpoint: Endpoint | None = None  # computes the model; only the small files of `weights` are read
    runtime: Runtime = Runtime()

    @property
    def is_forwarded(self) -> bool:
        """True if the door forwards requests to the endpoint; there are no ensembles."""
        return GENERATE in self.tasks

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
