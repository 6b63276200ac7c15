"""The model file: which weights, what the model does, its profiles. Immutable once read."""

import re
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, StringConstraints, model_validator

from sie_triton.adapters import FAMILIES, family_of
from sie_triton.contract import QUANTIZED, SCORE_MODES, TASKS
from sie_triton.errors import CatalogError
from sie_triton.spec import ModelSpec, MuveraConfig, RerankerConfig, Runtime
from sie_triton.spec import Profile as ProfileSpec

DEFAULT_BATCH_COST = 16384

SUFFIXES = ("-preprocess", "-inference", "-postprocess", *(f"-{task}" for task in TASKS))


def check_name(name: str) -> str:
    """The names of a model's steps and further tasks are its own with a suffix."""
    if name.endswith(SUFFIXES):
        raise ValueError(f"must not end in {', '.join(SUFFIXES)}; they name parts of a model")
    return name


ModelName = Annotated[
    str, StringConstraints(pattern=r"^[\w.-]+(/[\w.-]+)?$", max_length=200), AfterValidator(check_name)
]


def triton_name(model: str) -> str:
    """Triton's name of a model; Triton forbids the slash.

    >>> triton_name("BAAI/bge-m3")
    'BAAI__bge-m3'
    """
    return model.replace("/", "__")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Inputs(Frozen):
    text: bool = True
    image: bool = False
    audio: bool = False
    video: bool = False
    document: bool = False


class Output(Frozen):
    """`scales`: int8 and uint8 come with the scale of each row, one tensor more."""

    dim: PositiveInt
    scales: bool = False


class Encode(Frozen):
    dense: Output | None = None
    sparse: Output | None = None
    multivector: Output | None = None


class Score(Frozen):
    pass


class Extract(Frozen):
    pass


class Tasks(Frozen):
    encode: Encode | None = None
    score: Score | None = None
    extract: Extract | None = None


class MuveraOptions(Frozen):
    """Of SIE's model files; see sie_triton.spec.MuveraConfig."""

    num_repetitions: PositiveInt = 40
    num_simhash_projections: Annotated[int, Field(ge=1, le=12)] = 6
    projection_dim: PositiveInt | None = None
    final_projection_dim: PositiveInt | None = 10240
    seed: int = 42
    normalize: bool = False
    center_tokens: bool = False


class LoadtimeOptions(Frozen):
    """From `yes_token` to `default_instruction` they are of llm_reranker; see sie_triton.spec.RerankerConfig."""

    trust_remote_code: bool = False
    yes_token: str = Field("1", min_length=1)
    no_token: str = Field("0", min_length=1)
    input_format: Literal["qwen3", "mxbai"] = "mxbai"
    score_mode: Literal["logit_diff", "log_softmax"] = "logit_diff"
    default_instruction: str = ""
    muvera_config: MuveraOptions | None = None


def check_template(template: str) -> str:
    """`{text}` once, `{instruction}` where it is wanted, and no other braces."""
    fields = re.findall(r"\{[^{}]*\}?|\}", template)
    if template and (fields.count("{text}") != 1 or set(fields) - {"{text}", "{instruction}"}):
        raise ValueError("must hold {text} once, and no braces but those of {text} and {instruction}")
    return template


Template = Annotated[str, AfterValidator(check_template)]


class RuntimeOptions(Frozen):
    """What a profile may say of its requests. `output_similarity` is for readers of the file."""

    pooling: Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "last"] | None = None
    normalize: bool | None = None
    muvera: MuveraOptions | None = None
    output_types: tuple[Literal["dense", "sparse", "multivector", "muvera"], ...] = ()
    output_similarity: dict[str, str] = {}
    query_template: Template | None = None
    doc_template: Template | None = None
    default_instruction: str | None = None
    instruction: str | None = None
    max_seq_length: PositiveInt | None = None
    lora_id: str | None = None


class AdapterOptions(Frozen):
    loadtime: LoadtimeOptions = LoadtimeOptions()
    runtime: RuntimeOptions = RuntimeOptions()


class Profile(Frozen):
    extends: str | None = None
    max_batch_tokens: PositiveInt | None = None
    compute_precision: Literal["float16", "bfloat16", "float32"] | None = None
    adapter_path: str | None = None
    adapter_options: AdapterOptions = AdapterOptions()

    def over(self, parent: "Profile") -> "Profile":
        """This profile with `parent` filling what it leaves open.

        A non-empty `loadtime` or `runtime` replaces the parent's as a whole.
        """
        mine, theirs = self.adapter_options, parent.adapter_options
        return Profile(
            max_batch_tokens=self.max_batch_tokens or parent.max_batch_tokens,
            compute_precision=self.compute_precision or parent.compute_precision,
            adapter_path=self.adapter_path or parent.adapter_path,
            adapter_options=AdapterOptions(
                loadtime=mine.loadtime if mine.loadtime.model_fields_set else theirs.loadtime,
                runtime=mine.runtime if mine.runtime.model_fields_set else theirs.runtime,
            ),
        )

    @property
    def loading(self) -> tuple[object, ...]:
        """What decides how weights are loaded and run: profiles that differ in it cannot share them."""
        runtime = self.adapter_options.runtime
        ours = (self.adapter_path, self.compute_precision, self.adapter_options.loadtime)
        return (*ours, runtime.pooling, runtime.max_seq_length, runtime.lora_id)

    def with_muvera(self) -> RuntimeOptions:
        """`runtime`, an empty `muvera` filled from loadtime's `muvera_config`."""
        runtime, configured = self.adapter_options.runtime, self.adapter_options.loadtime.muvera_config
        if runtime.muvera is None or runtime.muvera.model_fields_set or configured is None:
            return runtime
        return runtime.model_copy(update={"muvera": configured})


class ModelConfig(Frozen):
    """One model file. `hf_id` or `weights_path` says where the weights are, never both."""

    sie_id: ModelName
    hf_id: str | None = None
    weights_path: str | None = None
    hf_revision: str | None = None
    inputs: Inputs = Inputs()
    tasks: Tasks
    max_sequence_length: PositiveInt
    batch_cost: Literal["tokens", "attention"] = "tokens"
    profiles: dict[str, Profile] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if (self.hf_id is None) == (self.weights_path is None):
            raise ValueError("give exactly one of hf_id, weights_path")
        if "default" not in self.profiles:
            raise ValueError("profiles: a profile named default is required")
        for name in self.profiles:
            self.profile(name)
        return self

    @property
    def weights(self) -> str:
        if self.weights_path is not None:
            return self.weights_path
        return f"hub://{self.hf_id}" + (f"@{self.hf_revision}" if self.hf_revision else "")

    def profile(self, name: str) -> Profile:
        """The profile with its chain of `extends` applied."""
        chain: list[str] = []
        while name not in chain:
            if name not in self.profiles:
                raise ValueError(f"profiles: no profile {name!r}; there are {', '.join(self.profiles)}")
            chain.append(name)
            parent = self.profiles[name].extends
            if parent is None:
                break
            name = parent
        else:
            raise ValueError(f"profiles: {' extends '.join([*chain, name])} never ends")
        resolved = self.profiles[chain[-1]]
        for child in reversed(chain[:-1]):
            resolved = self.profiles[child].over(resolved)
        return resolved

    @property
    def dims(self) -> dict[str, int]:
        """The output types of encode, and the size of each."""
        return {name: output["dim"] for name, output in (self.tasks.encode or Encode()).model_dump().items() if output}

    def _scaled(self, has_muvera: bool) -> tuple[str, ...]:
        """MUVERA's encoding as the vectors that it is made of."""
        outputs = self.tasks.encode or Encode()
        scaled = [name for name in QUANTIZED if (output := getattr(outputs, name, None)) and output.scales]
        return (*scaled, *(["muvera"] if has_muvera and "multivector" in scaled else []))

    def _other_tasks(self) -> list[str]:
        return [task for task in ("score", "extract") if getattr(self.tasks, task) is not None]

    def _score_modes(self, modes: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `modes` that the model's outputs allow."""
        if self.tasks.score is None or not modes:
            return ()
        possible = tuple(mode for mode in modes if set(SCORE_MODES[mode]) <= set(self.dims))
        if not possible:
            needed = " or ".join(f"tasks.encode.{' and '.join(SCORE_MODES[mode])}" for mode in modes)
            raise CatalogError(f"{self.sie_id}: tasks.score: needs {needed}")
        return possible

    def _served_profiles(self) -> dict[str, RuntimeOptions]:
        """Those that the weights of the default profile serve too; `muvera` with its parameters."""
        names = ["default", *(name for name in self.profiles if name != "default")]
        loading = self.profile("default").loading
        return {name: each.with_muvera() for name in names if (each := self.profile(name)).loading == loading}

    def _profile_spec(self, name: str, options: RuntimeOptions) -> ProfileSpec:
        has = (*self.dims, *(["muvera"] if options.muvera is not None else []))
        # SIE gives a MUVERA encoding under the name of dense.
        wanted = ["muvera" if each == "dense" and "dense" not in has else each for each in options.output_types]
        if set(wanted) - set(has):
            raise CatalogError(
                f"{self.sie_id}: profiles.{name}: adapter_options.runtime.output_types: "
                f"there are {', '.join(has)} (given {', '.join(options.output_types)})"
            )
        return ProfileSpec(
            name=name,
            output_types=tuple(wanted) or has,
            normalize=options.normalize is not False,
            query_template=options.query_template or "",
            document_template=options.doc_template or "",
            query_instruction=options.default_instruction or "",
            instruction=options.instruction or "",
        )

    def resolve(self, runtime: Runtime) -> ModelSpec:
        """What the stages of this model need; CatalogError if this server cannot run it."""
        profile = self.profile("default")
        family = family_of(profile.adapter_path, self.sie_id)
        dims = self.dims
        wanted = [*(f"encode.{name}" for name in dims), *self._other_tasks()]
        served = FAMILIES[family].tasks
        if not wanted or set(wanted) - set(served):
            raise CatalogError(
                f"{self.sie_id}: tasks: {', '.join(sorted(set(wanted) - set(served))) or 'none'} cannot be served; "
                f"the family {family} has {', '.join(served)}"
            )
        score_modes = self._score_modes(FAMILIES[family].score_modes)
        options, profiles = profile.adapter_options.runtime, self._served_profiles()
        muvera = next(filter(None, (each.muvera for each in profiles.values())), None)
        if muvera is not None and "multivector" not in dims:
            raise CatalogError(f"{self.sie_id}: adapter_options.runtime.muvera: needs tasks.encode.multivector")
        return ModelSpec(
            model=self.sie_id,
            weights=self.weights,
            family=family,
            output_types=(*dims, *(["muvera"] if muvera is not None else [])),
            dense_dim=dims.get("dense", 0),
            max_sequence_length=min(self.max_sequence_length, options.max_seq_length or self.max_sequence_length),
            max_batch_cost=profile.max_batch_tokens or DEFAULT_BATCH_COST,
            batch_cost=self.batch_cost,
            pooling="lasttoken" if options.pooling == "last" else options.pooling,
            sparse_dim=dims.get("sparse", 0),
            multivector_dim=dims.get("multivector", 0),
            scaled=self._scaled(muvera is not None),
            tasks=(*(["encode"] if dims else []), *self._other_tasks()),
            score_modes=score_modes,
            reranker=_reranker(profile.adapter_options.loadtime) if family == "llm_reranker" else None,
            muvera=MuveraConfig(**muvera.model_dump()) if muvera is not None else None,
            profiles=tuple(self._profile_spec(name, each) for name, each in profiles.items()),
            runtime=replace(runtime, precision=profile.compute_precision or runtime.precision),
        )


def _reranker(options: LoadtimeOptions) -> RerankerConfig:
    return RerankerConfig(
        yes_token=options.yes_token,
        no_token=options.no_token,
        input_format=options.input_format,
        score_mode=options.score_mode,
        instruction=options.default_instruction,
    )
