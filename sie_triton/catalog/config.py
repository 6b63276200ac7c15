"""The model file: which weights, what the model does, its profiles. Immutable once read."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    create_model,
    model_validator,
)

from sie_triton.catalog.of_family import family_options, option_names, profile_spec, with_muvera
from sie_triton.catalog.options import Frozen, Profile, RuntimeOptions
from sie_triton.catalog.served import refusals, unread, without_effect
from sie_triton.contract import ENCODE_OUTPUTS, ITEMS, SCORE_MODES, TASKS
from sie_triton.contract.tensors import TEXT
from sie_triton.errors import CatalogError
from sie_triton.families import Family, family, family_of
from sie_triton.spec import ModelSpec, MuveraConfig, Runtime

DEFAULT_BATCH_COST = 16384

# Outputs of vectors, which may come with scales.
SCALED = tuple(name for name, output in ENCODE_OUTPUTS.items() if output.scales)

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


# Kinds that SIE's model files name; no family of ours reads video.
INPUTS = (*ITEMS, "video")
_kinds: dict[str, Any] = {kind: (bool, kind == TEXT.name) for kind in INPUTS}
Inputs = create_model("Inputs", __base__=Frozen, **_kinds)


class Output(Frozen):
    """`scales`: int8 and uint8 come with the scale of each row, one tensor more."""

    dim: Annotated[int, Field(gt=0, le=10_000_000)]
    scales: bool = False


class Encode(BaseModel):
    """What else stands here are outputs of the family's own."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Output]

    dense: Output | None = None
    sparse: Output | None = None
    multivector: Output | None = None


class Plain(Frozen):
    """A verb that says no more than that the model does it."""


class Encodes(Frozen):
    encode: Encode | None = None


_verbs: dict[str, Any] = {task: (Plain | None, None) for task in TASKS if task != "encode"}
Tasks = create_model("Tasks", __base__=Encodes, **_verbs)


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
        scaled = [name for name in SCALED if (output := getattr(outputs, name, None)) and output.scales]
        return (*scaled, *(["muvera"] if has_muvera and "multivector" in scaled else []))

    @property
    def family(self) -> str:
        """CatalogError where there is none of that name."""
        return family_of(self.profile("default").adapter_path, self.source)

    def warnings(self) -> list[str]:
        """What stands in the file and has no effect."""
        default = self.profile("default")
        profiles = {name: self.profile(name) for name in self.profiles}
        kind = family(self.family)
        lines = [
            line for name, each in profiles.items() for line in without_effect(name, each, default, self.family, kind)
        ]
        return [f"warning: {self.source}: {line}" for line in lines]

    @property
    def verbs(self) -> tuple[str, ...]:
        """What it does: the names of its tasks; encode only where it names an output."""
        given = (task for task in Tasks.model_fields if getattr(self.tasks, task) is not None)
        return tuple(task for task in given if task != "encode" or self.dims)

    def _score_modes(self, modes: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `modes` that the model's outputs allow."""
        if "score" not in self.verbs or not modes:
            return ()
        possible = tuple(mode for mode in modes if set(SCORE_MODES[mode]) <= set(self.dims))
        if not possible:
            needed = " or ".join(f"tasks.encode.{' and '.join(SCORE_MODES[mode])}" for mode in modes)
            raise CatalogError(f"{self.source}: tasks.score: needs {needed}")
        return possible

    def _served_profiles(self, kind: Family) -> dict[str, Profile]:
        """Those that the weights of the default profile serve too."""
        names = ["default", *(name for name in self.profiles if name != "default")]
        default, options = self.profile("default"), option_names(kind)
        return {name: each for name in names if not (each := self.profile(name)).differs(default, options)}

    def _check_served(self, kind: Family) -> None:
        """CatalogError names what is asked for and the family does not do."""
        name = self.family
        wanted = [*(f"encode.{output}" for output in self.dims), *(verb for verb in self.verbs if verb != "encode")]
        refused = [*unread(self.inputs.model_dump(), name, kind)]
        if not wanted or set(wanted) - set(kind.tasks):
            missing = ", ".join(sorted(set(wanted) - set(kind.tasks))) or "none"
            refused.append(f"tasks: {missing} cannot be served; the family {name} has {', '.join(kind.tasks)}")
        refused += refusals({each: self.profile(each) for each in self.profiles}, name, kind)
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

    def _dims(self, muvera: MuveraConfig | None) -> dict[str, int]:
        """With MUVERA's encoding, which is made of multivector."""
        made = {"muvera": muvera.dim(self.dims["multivector"])} if muvera is not None else {}
        return {**self.dims, **made}

    def resolve(self, runtime: Runtime) -> ModelSpec:
        """What the stages of this model need; CatalogError if this server cannot run it."""
        profile, kind = self.profile("default"), family(self.family)
        self._check_served(kind)
        options, profiles = profile.adapter_options.runtime, self._served_profiles(kind)
        runtimes = {name: with_muvera(name, each, self.source) for name, each in profiles.items()}
        muvera = self._muvera(runtimes)
        dims = self._dims(muvera)
        return ModelSpec(
            model=self.sie_id,
            weights=self.weights,
            family=self.family,
            dims=dims,
            options=family_options(profile, kind, self.source),
            engine=profile.engine or kind.engines[0],
            inputs=tuple(name for name, read in self.inputs.model_dump().items() if read),
            max_sequence_length=min(self.max_sequence_length, options.max_seq_length or self.max_sequence_length),
            max_batch_cost=profile.max_batch_tokens or DEFAULT_BATCH_COST,
            batch_cost=self.batch_cost,
            scaled=self._scaled(muvera is not None),
            tasks=self.verbs,
            score_modes=self._score_modes(kind.score_modes),
            muvera=muvera,
            profiles=tuple(
                profile_spec(name, each, tuple(dims), kind.parameters, self.source) for name, each in runtimes.items()
            ),
            runtime=replace(runtime, precision=profile.compute_precision or runtime.precision),
        )
