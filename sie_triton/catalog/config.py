"""The model file: which weights, what the model does, its profiles. Immutable once read."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PrivateAttr, StringConstraints, model_validator

from sie_triton.catalog.options import Frozen, LoadtimeOptions, Profile, RuntimeOptions
from sie_triton.catalog.served import refusals, unread, without_effect
from sie_triton.contract import QUANTIZED, SCORE_MODES, TASKS
from sie_triton.errors import CatalogError
from sie_triton.families import FAMILIES, family_of
from sie_triton.spec import ModelSpec, MuveraConfig, RerankerConfig, Runtime
from sie_triton.spec import Profile as ProfileSpec

DEFAULT_BATCH_COST = 16384

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
SUFFIXES = ("-preprocess", "-inference", "-postprocess", *(f"-{task}" for task in TASKS))


def check_name(name: str) -> str:
    """Part of URLs, files and directories; the names of a model's steps and further tasks are its own with a suffix."""
    if not NAME.fullmatch(name):
        raise ValueError("must be name or org/name, of letters a to z, digits, _, . and -, with no . or - first")
    if name.endswith(SUFFIXES):
        raise ValueError(f"must not end in {', '.join(SUFFIXES)}; they name parts of a model")
    return name


ModelName = Annotated[str, StringConstraints(max_length=200), AfterValidator(check_name)]

Tokens = Annotated[int, Field(gt=0, le=10_000_000)]


def triton_name(model: str) -> str:
    """Triton's name of a model; Triton forbids the slash.

    >>> triton_name("BAAI/bge-m3")
    'BAAI__bge-m3'
    """
    return model.replace("/", "__")


class Inputs(Frozen):
    text: bool = True
    image: bool = False
    audio: bool = False
    video: bool = False
    document: bool = False


class Output(Frozen):
    """`scales`: int8 and uint8 come with the scale of each row, one tensor more."""

    dim: Annotated[int, Field(gt=0, le=10_000_000)]
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


class ModelConfig(Frozen):
    """One model file. `hf_id` or `weights_path` says where the weights are, never both."""

    sie_id: ModelName
    hf_id: str | None = None
    weights_path: str | None = None
    hf_revision: str | None = None
    inputs: Inputs = Inputs()
    tasks: Tasks
    max_sequence_length: Tokens
    batch_cost: Literal["tokens", "attention"] = "tokens"
    profiles: dict[str, Profile] = Field(min_length=1)
    _source: str = PrivateAttr("")

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if (self.hf_id is None) == (self.weights_path is None):
            raise ValueError("give exactly one of hf_id, weights_path")
        if self.hf_revision is not None and self.hf_id is None:
            raise ValueError("hf_revision: belongs to hf_id, and weights_path is given")
        if "default" not in self.profiles:
            raise ValueError("profiles: a profile named default is required")
        for name in self.profiles:
            self.profile(name)
        return self

    def found_in(self, source: Path) -> "ModelConfig":
        """Itself, saying from now on which model file or directory it was read from."""
        self._source = str(source)
        return self

    @property
    def source(self) -> str:
        return self._source or self.sie_id

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

    @property
    def family(self) -> str:
        """CatalogError where this version has none of that name."""
        return family_of(self.profile("default").adapter_path, self.source)

    def warnings(self) -> list[str]:
        """What stands in the file and has no effect."""
        default = self.profile("default")
        profiles = {name: self.profile(name) for name in self.profiles}
        lines = [line for name, each in profiles.items() for line in without_effect(name, each, default, self.family)]
        return [f"warning: {self.source}: {line}" for line in lines]

    def _other_tasks(self) -> list[str]:
        return [task for task in ("score", "extract") if getattr(self.tasks, task) is not None]

    def _score_modes(self, modes: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `modes` that the model's outputs allow."""
        if self.tasks.score is None or not modes:
            return ()
        possible = tuple(mode for mode in modes if set(SCORE_MODES[mode]) <= set(self.dims))
        if not possible:
            needed = " or ".join(f"tasks.encode.{' and '.join(SCORE_MODES[mode])}" for mode in modes)
            raise CatalogError(f"{self.source}: tasks.score: needs {needed}")
        return possible

    def _served_profiles(self) -> dict[str, RuntimeOptions]:
        """Those that the weights of the default profile serve too; `muvera` with its parameters."""
        names = ["default", *(name for name in self.profiles if name != "default")]
        default = self.profile("default")
        return {name: each.with_muvera() for name in names if not (each := self.profile(name)).differs(default)}

    def _profile_spec(self, name: str, options: RuntimeOptions) -> ProfileSpec:
        has = (*self.dims, *(["muvera"] if options.muvera is not None else []))
        # SIE gives a MUVERA encoding under the name of dense.
        wanted = ["muvera" if each == "dense" and "dense" not in has else each for each in options.output_types]
        if set(wanted) - set(has):
            raise CatalogError(
                f"{self.source}: profiles.{name}: adapter_options.runtime.output_types: "
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

    def _check_served(self, family: str) -> None:
        """CatalogError names what is asked for and the family does not do."""
        wanted = [*(f"encode.{name}" for name in self.dims), *self._other_tasks()]
        served = FAMILIES[family].tasks
        refused = [*unread(self.inputs.model_dump(), family)]
        if not wanted or set(wanted) - set(served):
            missing = ", ".join(sorted(set(wanted) - set(served))) or "none"
            refused.append(f"tasks: {missing} cannot be served; the family {family} has {', '.join(served)}")
        refused += refusals(self.profile("default").adapter_options, family)
        if refused:
            raise CatalogError("\n".join(f"{self.source}: {line}" for line in refused))

    def _muvera(self, profiles: Mapping[str, RuntimeOptions]) -> MuveraConfig | None:
        """A model has one MUVERA encoding, which a profile has or has not."""
        found = {name: each.muvera for name, each in profiles.items() if each.muvera is not None}
        if found and "multivector" not in self.dims:
            raise CatalogError(f"{self.source}: adapter_options.runtime.muvera: needs tasks.encode.multivector")
        if len(set(found.values())) > 1:
            raise CatalogError(f"{self.source}: profiles: the muvera of {' and '.join(found)} must be the same")
        return next((MuveraConfig(**each.model_dump()) for each in found.values()), None)

    def resolve(self, runtime: Runtime) -> ModelSpec:
        """What the stages of this model need; CatalogError if this server cannot run it."""
        profile, family, dims = self.profile("default"), self.family, self.dims
        self._check_served(family)
        options, profiles = profile.adapter_options.runtime, self._served_profiles()
        muvera = self._muvera(profiles)
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
            score_modes=self._score_modes(FAMILIES[family].score_modes),
            reranker=_reranker(profile.adapter_options.loadtime) if family == "llm_reranker" else None,
            muvera=muvera,
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
