"""What a running stage knows of its model: one frozen value, carried in config.pbtxt as JSON.

Standard library only: a cold stage process stays small.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

# Which engine computes where a model could be computed by several: chosen by what is there, and by measurement.
AUTO, TORCH, ONNX = "auto", "torch", "onnx"

SPEC_PARAMETER = "sie_spec"

# Of a model whose file sets no limit: that of its checkpoint holds.
ANY_LENGTH = 10_000_000

# More than this at once does not make a CPU faster: measured in ARCHITECTURE.md.
CPU_ADMISSION_COST = 2048

# The engine of models that somebody else's server computes.
REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Runtime:
    """The settings that stages obey, resolved when the repository is rendered.

    `max_sub_batch_cost`, in the model's cost unit, is what the device runs at once; 0: calibrated.
    `max_concurrent_requests` holds for each model. `cpu_threads`, shared by all models in use; 0: all
    cores. `image_workers` threads of each model decode its images and sounds, images in `max_decoded_bytes`. A
    forward pass longer than `forward_timeout_s` is ended together with its process, as is a load longer than
    `load_timeout_s`. Only with `open_steps` may clients call a step without the one before it. `engine` auto: what each
    checkpoint is for, and what is measured to be faster. `precision` empty: float32 on a CPU, float16 on a GPU. A model
    holds `max_loras` LoRA adapters at once; with `allow_client_lora` a request may name any of the hub's. `status_dir`
    empty: a directory of the running tritonserver; `loras_dir` empty: no adapters are added to a running server;
    `cache_dir` and `environments_dir` empty: the user's directories for caches and data. The first holds measurements,
    graphs and converted weights.
    """

    device: str = "auto"
    precision: str = ""
    attention: str = "auto"
    engine: str = AUTO
    max_sub_batch_cost: int = 0
    recalibrate: bool = False
    cpu_threads: int = 0
    max_concurrent_requests: int = 512
    forward_timeout_s: float = 120.0
    load_timeout_s: float = 600.0
    image_workers: int = 4
    max_image_bytes: int = 64 * 1024**2
    max_image_pixels: int = 100_000_000
    max_pages: int = 100
    max_decoded_bytes: int = 1_500_000_000
    max_document_bytes: int = 64 * 1024**2
    max_audio_bytes: int = 64 * 1024**2
    max_audio_s: float = 600.0
    allow_hub: bool = True
    open_steps: bool = False
    max_loras: int = 10
    allow_client_lora: bool = False
    status_dir: str = ""
    loras_dir: str = ""
    cache_dir: str = ""
    environments_dir: str = ""


@dataclass(frozen=True, slots=True)
class MuveraConfig:
    """`num_simhash_projections` k gives 2^k partitions; `projection_dim` and `final_projection_dim` None: none.

    `center_tokens`: without the mean of an item's vectors, for models whose vectors have much in common.
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
        """Entries of an encoding of vectors of `token_dim`.

        >>> MuveraConfig(num_repetitions=2, num_simhash_projections=3, final_projection_dim=None).dim(16)
        256
        """
        blocks = self.num_repetitions * self.num_partitions * (self.projection_dim or token_dim)
        return self.final_projection_dim or blocks


@dataclass(frozen=True, slots=True)
class Profile:
    """What holds for requests that do not say otherwise. Profiles of a model share its weights.

    `parameters` are request parameters. A template holds `{text}` once, and may hold `{instruction}`; empty: the
    prompts of the model's own files. `query_instruction` is for the template of queries, `instruction` for all texts
    and over it; None: there is none.
    """

    name: str = "default"
    parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    query_template: str = ""
    document_template: str = ""
    query_instruction: str = ""
    instruction: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server of somebody's that computes a model: it is called `model` there.

    `url` is what the API's paths follow. `api_key_env` names an environment variable; the key itself stands nowhere.
    """

    url: str
    model: str
    api_key_env: str = ""

    @property
    def is_private(self) -> bool:
        """True if the connection is encrypted or local, so that nobody on the network can read a key.

        >>> [Endpoint(url, "m").is_private for url in ("https://host", "http://[::1]", "http://127.0.0.1:1", "http://a")]
        [True, True, True, False]
        """
        from urllib.parse import urlsplit  # imported here because cold stages do not need it

        parts = urlsplit(self.url)
        return parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model, resolved.

    `weights` is a directory, `package://module/path` or `hub://org/name[@revision]`. `family` is the name of one of
    ours, or `module:Class`; `options` are its own, as its schema has them; `engine` computes its encoder, ONNX Runtime
    from the file `onnx_file`, or from the usual one. `tasks` are names of verbs. `dims` are the output types of encode,
    and the size of each; the int8 and uint8 forms of those `scaled` come with scales. `score_modes` are the ways to
    score by them, the default first; a model that scores and has none reads query and text together. `inputs` are the
    kinds of input it reads. `environment` names the one its worker runs in; empty: that of the server. Lengths are in
    tokens. Profiles `apart` are models of their own, `model.profile`. `allow_pickle`: "tensors" lets weights that are
    only pickled be converted to safetensors; empty: they are refused. `loras` are the LoRA adapters that a request may
    name: name → where it is, as `weights`. With an `endpoint` the model is computed there, and of `weights` only the
    small files are read.
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
        """The same model, run on `device`."""
        return replace(self, runtime=replace(self.runtime, device=device))

    def profile(self, name: str) -> Profile:
        """KeyError where there is no such profile."""
        return {profile.name: profile for profile in self.profiles}[name]

    @property
    def admission_cost(self) -> int:
        """What Triton may queue together: about one forward pass, so that the next forms meanwhile."""
        is_computed_here = self.runtime.device == "cpu" and self.endpoint is None
        usual = CPU_ADMISSION_COST if is_computed_here else self.max_batch_cost
        return min(self.max_batch_cost, self.runtime.max_sub_batch_cost or usual)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ModelSpec":
        raw: dict[str, Any] = json.loads(text)
        for f in fields(cls):
            if isinstance(raw.get(f.name), list):
                raw[f.name] = tuple(raw[f.name])
        raw["profiles"] = tuple(Profile(**each) for each in raw["profiles"])
        raw["runtime"] = Runtime(**raw["runtime"])
        raw["muvera"] = MuveraConfig(**raw["muvera"]) if raw["muvera"] else None
        raw["endpoint"] = Endpoint(**raw["endpoint"]) if raw["endpoint"] else None
        return cls(**raw)
