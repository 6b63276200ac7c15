"""The model file: its weights, its tasks and its profiles. Immutable once read."""

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from sie_triton.checkpoints.files import first_line
from sie_triton.contract import SCORE_MODES
from sie_triton.contract.spec import ANY_LENGTH, GENERATE, REMOTE, ModelSpec, MuveraConfig, Runtime
from sie_triton.errors import CatalogError, SIEError, UnbuiltFamily
from sie_triton.models.catalog.family_keys import family_options, option_names, profile_spec, with_defaults
from sie_triton.models.catalog.forwarded import check_has_endpoint, contradictions, keys_without_effect
from sie_triton.models.catalog.names import ModelName
from sie_triton.models.catalog.options import LORA, Frozen, Loras, ProfileConfig, RuntimeOptions, adapters, extended
from sie_triton.models.catalog.served import denied, not_needed, refusals, unknown_options, unread, without_effect
from sie_triton.models.catalog.tasks import SCALED, EncodeConfig, Inputs, Tasks
from sie_triton.models.environments.venv import check_name as check_environment
from sie_triton.models.families import Family, family, family_of
from sie_triton.models.known_loras import PATHS
from sie_triton.records.serving_file import file_of, is_model_file
from sie_triton.settings.validation import requirement

log = logging.getLogger(__name__)

DEFAULT_BATCH_COST = 16384

Tokens = Annotated[int, Field(gt=0, le=ANY_LENGTH)]


class ModelConfig(Frozen):
    """The contents of one model file. Relative paths start at the file."""

    sie_id: ModelName
    hf_id: str | None = None  # this, `weights_path` or `package_backed` says where the weights are
    weights_path: str | None = None
    package_backed: bool = False  # the family's Python package contains them
    hf_revision: str | None = None
    license: str | None = None
    allow_pickle: Literal["tensors"] | None = None  # weights that exist only as a pickle are converted
    environment: Annotated[str, AfterValidator(check_environment)] | None = None  # of the model's workers
    loras: Loras = Field(default={})  # adapters that requests may use → locations
    inputs: Inputs = Inputs()
    tasks: Tasks
    max_sequence_length: Tokens | None = None  # None: the checkpoint decides
    batch_cost: Literal["tokens", "attention"] = "tokens"
    hf_tokenizer_dependencies: Mapping[str, str | None] = Field(default={})
    profiles: dict[str, ProfileConfig] = Field(min_length=1)
    _source: str = PrivateAttr("")
    _base: str = PrivateAttr("")
    _reason: str = PrivateAttr("")

    @model_validator(mode="before")
    @classmethod
    def _with_default(cls, given: Any) -> Any:
        """Take the only profile of a file for its default, and refuse a file for local generation in one line."""
        tasks, profiles = (given.get(key) if isinstance(given, dict) else None for key in ("tasks", "profiles"))
        if isinstance(tasks, dict) and tasks.get(GENERATE) is not None:
            check_has_endpoint(profiles)
        if not isinstance(profiles, dict) or len(profiles) != 1 or "default" in profiles:
            return given
        (name,) = profiles
        return {**given, "profiles": {"default": {"extends": name}, **profiles}}

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if (
            not self.is_forwarded
            and [self.hf_id is None, self.weights_path is None, not self.package_backed].count(False) != 1
        ):
            raise ValueError("give exactly one of hf_id, weights_path, package_backed")
        if self.hf_revision is not None and self.hf_id is None:
            raise ValueError("hf_revision: can only be given together with hf_id")
        if "default" not in self.profiles:
            raise ValueError("profiles: a profile named default is required")
        for name in self.profiles:
            self.profile(name)
        if self.is_forwarded and (lines := [*contradictions(self.tasks, self._given, self.profile("default"))]):
            raise ValueError(lines[0])
        return self

    def record_source(self, source: Path, reason: str = "") -> "ModelConfig":
        """Record the file or directory that this was read from, and why a directory was recognised; return self."""
        self._source, self._reason = str(source), reason
        return self

    @property
    def source(self) -> str:
        return self._source or self.sie_id

    @property
    def base(self) -> str:
        """Name of the model whose profile this variant is; empty if this is no variant."""
        return self._base

    @property
    def is_forwarded(self) -> bool:
        """True if an endpoint generates text, so that the door forwards requests to it."""
        return GENERATE in self.verbs

    @property
    def _given(self) -> Mapping[str, Any]:
        return {key: getattr(self, key) for key in self.model_fields_set}

    @property
    def weights(self) -> str:
        """Location of the weights; empty if the model is forwarded."""
        if self.is_forwarded:
            return ""
        if self.weights_path is not None:
            return self.located(self.weights_path)
        if self.package_backed:  # the weights are in the family's own package
            package, *path = family(self.family).__module__.split(".")
            return f"package://{package}/{'/'.join(path)}"
        return f"hub://{self.hf_id}" + (f"@{self.hf_revision}" if self.hf_revision else "")

    def located(self, path: str) -> str:
        """Return a path of the model file as an absolute path; relative ones start at the file. A URL is unchanged."""
        directory = Path(file_of(self._source)).parent if is_model_file(self._source) else Path()
        return path if "://" in path else str(directory.absolute() / os.path.expanduser(path))

    @property
    def paths(self) -> Mapping[str, str]:
        """Paths of directories as the file has them, by key."""
        given = {} if self.weights_path is None else {"weights_path": self.weights_path}
        given |= {f"loras.{name}": where for name, where in self.loras.items()}
        own = {name: profile.adapter_options.runtime.lora_id or "" for name, profile in self.profiles.items()}
        given |= {f"profiles.{name}.{LORA}": where for name, where in own.items() if where.startswith(PATHS)}
        return {key: path for key, path in given.items() if "://" not in path}

    def profile(self, name: str) -> ProfileConfig:
        """Return the profile with its chain of `extends` applied; ValueError if the chain is broken or circular."""
        found = extended(self.profiles, name)
        if not found.is_for_another_engine:
            return found
        others = (extended(self.profiles, other) for other in self.profiles if other != name)
        computed = next((other for other in others if not other.is_for_another_engine), None)
        return found if computed is None else found.as_computed_by(computed)

    @property
    def dims(self) -> dict[str, int]:
        """Dimension of each output type of encode."""
        return {
            name: output["dim"] for name, output in (self.tasks.encode or EncodeConfig()).model_dump().items() if output
        }

    def _scaled(self, has_muvera: bool) -> tuple[str, ...]:
        """Return the outputs that come with scales; MUVERA's encoding has them if the multivectors have them."""
        outputs = self.tasks.encode or EncodeConfig()
        scaled = [name for name in SCALED if (output := getattr(outputs, name, None)) and output.scales]
        return (*scaled, *(["muvera"] if has_muvera and "multivector" in scaled else []))

    @property
    def family(self) -> str:
        """Family of the default profile, empty if the model is forwarded.

        CatalogError if its name is unknown, UnbuiltFamily if it is not built yet.
        """
        if self.is_forwarded:
            return ""
        return self._family_of("default", f"{self.source}: profiles.default")

    def _family_of(self, profile: str, where: str) -> str:
        name = family_of(self.profile(profile).adapter_path, where)
        return family(name).served_elsewhere.get(self.hf_id or "", name)

    @cached_property
    def apart(self) -> Mapping[str, tuple[str, ...]]:
        """Profiles that cannot share the default profile's weights, with the keys in which they differ."""
        if self.is_forwarded:
            return {}
        found = {name: tuple(self._differences(name)) for name in self.profiles}
        return {name: keys for name, keys in found.items() if keys}

    def _unknown_options(self) -> Iterator[str]:
        """Yield a line for each unknown option, in all profiles whose family this version implements."""
        for name in self.profiles:
            if (other := self._family(name)) and not self.profile(name).is_smve:
                yield from unknown_options(name, self.profile(name), other, family(other))

    def _family(self, name: str) -> str:
        """Return the profile's family; empty if this version does not implement it."""
        try:
            return self._family_of(name, "")
        except CatalogError:
            return ""

    def _differences(self, name: str) -> Iterator[str]:
        default, profile, other = self.profile("default"), self.profile(name), self._family(name)
        if other != self.family:
            yield "adapter_path"
        names = option_names(family(other or self.family))
        mine, theirs = profile.loading(names), default.loading(names)
        yield from (key for key in mine if mine[key] != theirs[key])

    def variants(self) -> "list[ModelConfig]":
        """Return each profile that needs weights of its own as a separate model, `org/name.profile`.

        A variant whose family is not implemented fails only when it is resolved.
        """
        return [self._variant(name) for name in self.apart]

    def _variant(self, name: str) -> "ModelConfig":
        source = f"{self.source}: profiles.{name}"
        fields = dict(self._given)
        given = {"sie_id": f"{self.sie_id}.{name}", "profiles": {"default": self.profile(name)}}
        if not (other := self._family(name)) or not family(other).takes_loras:
            fields.pop("loras", None)
        try:
            variant = ModelConfig(**{**fields, **given})
        except ValidationError as exc:
            raise CatalogError(f"{source}: {requirement(exc.errors()[0])}; rename the profile") from exc
        variant._source, variant._base = source, self.sie_id
        return variant

    def warnings(self) -> list[str]:
        """Return warnings about keys without effect or with a surprising effect.

        For a recognised directory, return only the family that recognised it, and why.
        """
        if self._reason:
            return [f"recognised: {self.source}: {self.family}: {self._reason}"]
        if self.is_forwarded:
            unread = keys_without_effect(self._given, self.profiles)
            return [f"warning: {self.source}: {key}: has no effect: the endpoint decides" for key in unread]
        kind = family(self.family)
        lines = [*denied(self.inputs.model_dump(exclude_unset=True), self.family, kind)]
        for name in self.profiles:
            keys = self.apart.get(name, ())
            if keys:
                differs = f"{', '.join(keys)} differs from profiles.default"
                lines.append(f"profiles.{name}: is served as a separate model, {self.sie_id}.{name}: {differs}")
            elif not self._is_served(name):
                lacks = "has no smve" if self.profile(name).is_smve else "takes no LoRA adapters"
                lines.append(f"profiles.{name}: is not served: the family {self.family} {lacks}")
            else:
                lines += without_effect(name, self.profile(name), self.family, kind)
        return [f"warning: {self.source}: {line}" for line in lines]

    def notes(self) -> list[str]:
        """Return notes about keys that only other servers need, each key once."""
        if self.is_forwarded:
            return []
        found: dict[str, str] = {}
        for name, each in self._served_profiles().items():
            found |= {line: name for line in not_needed(each) if line not in found}
        lines = [f"profiles.{name}.{line}" for line, name in found.items()]
        if self.hf_tokenizer_dependencies:
            lines.append("hf_tokenizer_dependencies: is not needed: tokenizers come with the model or its encoder")
        for name in self.profiles:
            asked, each = extended(self.profiles, name), self.profile(name)
            if asked.adapter_path != each.adapter_path:
                loads = f"{asked.adapter_path} and its loadtime are not read"
                lines.append(f"profiles.{name}.adapter_path: {loads}: {each.adapter_path} serves the profile")
        return [f"note: {self.source}: {line}" for line in lines]

    @property
    def verbs(self) -> tuple[str, ...]:
        """Names of the model's tasks; encode only if the file names one of its outputs."""
        given = (task for task in Tasks.model_fields if getattr(self.tasks, task) is not None)
        return tuple(task for task in given if task != "encode" or self.dims)

    def _score_modes(self, modes: tuple[str, ...]) -> tuple[str, ...]:
        """Return those `modes` for which the model has all outputs."""
        if "score" not in self.verbs or not modes:
            return ()
        possible = tuple(mode for mode in modes if set(SCORE_MODES[mode]) <= set(self.dims))
        if not possible:
            needed = " or ".join(f"tasks.encode.{' and '.join(SCORE_MODES[mode])}" for mode in modes)
            raise CatalogError(f"{self.source}: tasks.score: needs {needed}")
        return possible

    def _served_profiles(self) -> dict[str, ProfileConfig]:
        """Return the profiles that share the default profile's weights, the default first."""
        names = ["default", *(name for name in self.profiles if name != "default")]
        return {name: self.profile(name) for name in names if self._is_served(name)}

    def _is_served(self, name: str) -> bool:
        """Return False if the profile needs weights of its own, or a LoRA adapter that the family cannot apply."""
        profile = self.profile(name)
        can_be = not profile.adapter_options.runtime.lora_id or family(self.family).takes_loras
        return name == "default" or (can_be and not profile.is_smve and name not in self.apart)

    def _check_served(self, kind: Family) -> None:
        """Raise CatalogError with a line for each key of the file that the family cannot serve."""
        name = self.family
        wanted = [*(f"encode.{output}" for output in self.dims), *(verb for verb in self.verbs if verb != "encode")]
        refused = [*unread(self.inputs.model_dump(), name, kind)]
        if not wanted or set(wanted) - set(kind.tasks):
            missing = ", ".join(sorted(set(wanted) - set(kind.tasks))) or "none"
            refused.append(f"tasks: {missing} cannot be served; the family {name} has {', '.join(kind.tasks)}")
        if self.loras and not kind.takes_loras:
            refused.append(f"loras: cannot be served; the family {name} takes no LoRA adapters")
        refused += [*refusals(self.profile("default"), name, kind), *self._local_only()]
        refused += self._unknown_options()
        if refused:
            raise CatalogError("\n".join(f"{self.source}: {line}" for line in refused))

    def _local_only(self) -> Iterator[str]:
        """Yield a line for each key that a model with a remote endpoint cannot have."""
        if self.profile("default").computed_by == REMOTE:
            given = (key for key in ("loras", "environment", "allow_pickle") if getattr(self, key))
            yield from (
                f"{key}: cannot be used with an endpoint, which holds the weights; leave it out" for key in given
            )

    def _muvera(self, profiles: Mapping[str, RuntimeOptions]) -> MuveraConfig | None:
        """Return the model's MUVERA options, None without any; CatalogError if those of its profiles differ."""
        found = {name: each.muvera for name, each in profiles.items() if each.muvera is not None}
        if found and "multivector" not in self.dims:
            raise CatalogError(f"{self.source}: adapter_options.runtime.muvera: needs tasks.encode.multivector")
        if len(set(found.values())) > 1:
            raise CatalogError(f"{self.source}: profiles: {' and '.join(found)} must have the same muvera options")
        return next((MuveraConfig(**each.model_dump()) for each in found.values()), None)

    def _dims(self, muvera: MuveraConfig | None) -> dict[str, int]:
        """Return the dimensions of all outputs, including MUVERA's encoding of the multivectors."""
        made = {"muvera": muvera.dim(self.dims["multivector"])} if muvera is not None else {}
        return {**self.dims, **made}

    def resolve(self, runtime: Runtime) -> ModelSpec:
        """Return the spec that the model's stages need; CatalogError if this server cannot run the model."""
        try:
            return self._resolved(runtime)
        except SIEError:
            raise
        except Exception as exc:  # a family of another package may raise anything
            log.exception("%s", self.source)
            raise CatalogError(f"{self.source}: cannot be resolved: {first_line(exc)}") from exc

    def _forwarded(self, profile: ProfileConfig, runtime: Runtime) -> ModelSpec:
        assert profile.endpoint is not None
        return ModelSpec(
            model=self.sie_id,
            weights="",
            family="",
            dims={},
            engine=REMOTE,
            endpoint=profile.endpoint.resolved(self.hf_id or self.sie_id),
            inputs=tuple(name for name, is_read in self.inputs if is_read),
            max_sequence_length=ANY_LENGTH,
            max_batch_cost=DEFAULT_BATCH_COST,
            tasks=self.verbs,
            runtime=runtime,
        )

    def _resolved(self, runtime: Runtime) -> ModelSpec:
        if self.is_forwarded:
            return self._forwarded(self.profile("default"), runtime)
        profile, kind = self.profile("default"), family(self.family)
        if reason := kind.not_served.get(self.hf_id or ""):
            raise UnbuiltFamily(f"{self.source}: hf_id: {self.hf_id} is not served by this version: {reason}")
        self._check_served(kind)
        profiles = self._served_profiles()
        runtimes = {name: with_defaults(name, each, kind, self.source) for name, each in profiles.items()}
        muvera, found = self._muvera(runtimes), adapters(self.loras, runtimes, self.source)
        dims = self._dims(muvera)
        spec = ModelSpec(
            model=self.sie_id,
            weights=self.weights,
            family=self.family,
            dims=dims,
            options=family_options(profile, kind, self.source),
            engine=profile.computed_by or kind.default_engine,
            onnx_file=profile.onnx_file or "",
            endpoint=profile.endpoint.resolved(self.hf_id or self.sie_id) if profile.endpoint else None,
            environment=self.environment or kind.environment,
            inputs=tuple(each for each in type(self.inputs).model_fields if each in kind.inputs),
            max_sequence_length=min(
                self.max_sequence_length or ANY_LENGTH, runtimes["default"].max_seq_length or ANY_LENGTH
            ),
            max_batch_cost=profile.max_batch_tokens or DEFAULT_BATCH_COST,
            batch_cost=self.batch_cost,
            allow_pickle=self.allow_pickle or "",
            scaled=self._scaled(muvera is not None),
            tasks=self.verbs,
            score_modes=self._score_modes(kind.score_modes),
            muvera=muvera,
            profiles=tuple(
                profile_spec(name, each, tuple(dims), kind.parameters, self.source) for name, each in runtimes.items()
            ),
            apart=tuple(self.apart),
            loras={name: self.located(where) for name, where in found.items()},
            runtime=replace(runtime, precision=profile.compute_precision or runtime.precision),
        )
        if refused := [f"{self.source}: {line}" for line in kind.refusals(spec)]:
            raise CatalogError("\n".join(refused))
        return spec
