"""The profiles of a model file and their options."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator

from sie_triton.contract.limits import LIMITS
from sie_triton.contract.spec import ONNX, REMOTE, Precision
from sie_triton.errors import CatalogError
from sie_triton.models.catalog.endpoint import EndpointOptions, as_written
from sie_triton.models.known_loras import check_name, source_of

LORA = "adapter_options.runtime.lora_id"

# Options that may be given under loadtime or under runtime.
OF_BOTH = ("normalize", "default_instruction", "max_seq_length")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MuveraOptions(Frozen):
    """MUVERA options as SIE's model files name them; see sie_triton.contract.spec.MuveraConfig."""

    num_repetitions: Annotated[int, Field(ge=1, le=1000)] = 40
    num_simhash_projections: Annotated[int, Field(ge=1, le=12)] = 6
    projection_dim: Annotated[int, Field(ge=1, le=100_000)] | None = None
    final_projection_dim: Annotated[int, Field(ge=1, le=1_000_000)] | None = 10240
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    normalize: bool = False
    center_tokens: bool = False


class Extensible(BaseModel):
    """Options with further keys, which are the family's or SIE's."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def own(self) -> dict[str, Any]:
        """The further keys of the file, with their values."""
        return self.__pydantic_extra__ or {}


class LoadtimeOptions(Extensible):
    """Options that apply when a model is loaded; see sie_triton.models.families.Options.

    OF_BOTH are defaults for the same runtime options.
    """


def check_template(template: str) -> str:
    """Return `template`; ValueError unless its only braces are `{text}`, once, and `{instruction}`, once or never."""
    fields = re.findall(r"\{[^{}]*\}?|\}", template)
    if template and sorted(fields) not in (["{text}"], ["{instruction}", "{text}"]):
        raise ValueError("must contain {text} once, {instruction} at most once, and no other braces")
    return template


Template = Annotated[str, AfterValidator(check_template)]


class RuntimeOptions(Extensible):
    """Options that apply to requests. Further keys are options or request parameters of the family.

    `output_similarity` only informs readers of the file.
    """

    normalize: bool | None = None
    muvera: MuveraOptions | None = None
    output_types: tuple[str, ...] = ()
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


class ProfileConfig(Frozen):
    """A profile. `adaptive_batching` is for SIE's own batcher."""

    extends: str | None = None
    max_batch_tokens: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    compute_precision: Precision | None = None
    adapter_path: str | None = None
    engine: str | None = None
    onnx_file: Annotated[str, Field(pattern=r"^(onnx/)?[^/]+\.onnx$")] | None = None
    endpoint: Annotated[EndpointOptions | None, BeforeValidator(as_written)] = None
    adapter_options: AdapterOptions = AdapterOptions()
    adaptive_batching: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check(self) -> "ProfileConfig":
        if self.endpoint is not None and self.engine not in (None, REMOTE):
            raise ValueError(f"engine: with an endpoint, must be {REMOTE} or left out (given {self.engine!r})")
        if self.onnx_file is not None and self.computed_by != ONNX:
            raise ValueError(f"onnx_file: can only be used with the engine {ONNX} (given {self.computed_by!r})")
        return self

    @property
    def computed_by(self) -> str | None:
        """Engine that the profile names or implies; None for the family's default."""
        return self.engine or (REMOTE if self.endpoint else ONNX if self.onnx_file else None)

    def over(self, parent: "ProfileConfig") -> "ProfileConfig":
        """Return this profile, with the keys that it leaves out taken from `parent`.

        A non-empty `loadtime` or `runtime` replaces the parent's as a whole.
        """
        mine, theirs = self.adapter_options, parent.adapter_options
        engine = self.computed_by or parent.computed_by
        return ProfileConfig(
            max_batch_tokens=self.max_batch_tokens or parent.max_batch_tokens,
            compute_precision=self.compute_precision or parent.compute_precision,
            adapter_path=self.adapter_path or parent.adapter_path,
            engine=engine,
            endpoint=self.endpoint or (parent.endpoint if engine == REMOTE else None),
            onnx_file=self.onnx_file or (parent.onnx_file if engine == ONNX else None),
            adapter_options=AdapterOptions(
                loadtime=mine.loadtime if mine.loadtime.model_fields_set else theirs.loadtime,
                runtime=mine.runtime if mine.runtime.model_fields_set else theirs.runtime,
            ),
        )

    def loading(self, options: frozenset[str]) -> dict[str, object]:
        """Return the keys that decide how weights are loaded and run; profiles that differ in one cannot share weights.

        `options` are the names of the family's options. The caller compares the families themselves.
        """
        loadtime, runtime = self.adapter_options.loadtime, self.adapter_options.runtime
        return {
            "engine": self.computed_by,
            "endpoint": self.endpoint,
            "onnx_file": self.onnx_file,
            "compute_precision": self.compute_precision,
            **{f"adapter_options.loadtime.{key}": loadtime.own.get(key) for key in sorted(options)},
            **{f"adapter_options.runtime.{key}": runtime.own.get(key) for key in sorted(options)},
            "adapter_options.runtime.max_seq_length": runtime.max_seq_length or loadtime.own.get("max_seq_length"),
        }

    def with_defaults(self, options: frozenset[str], parameters: frozenset[str] = frozenset()) -> RuntimeOptions:
        """Return the runtime options, with missing ones filled from loadtime.

        Filled are the keys that may stand in both, unless they are family `options`; the family's request `parameters`;
        and an empty `muvera`, from `muvera_config`.
        """
        runtime, given = self.adapter_options.runtime, self.adapter_options.loadtime.own
        filled = {key: given[key] for key in (*OF_BOTH, *parameters) if key in given and key not in options}
        said = runtime.model_dump(exclude_unset=True, exclude_none=True)
        if said.get("muvera") == {} and given.get("muvera_config") is not None:
            said["muvera"] = given["muvera_config"]
        return RuntimeOptions.model_validate({**filled, **said})

    @property
    def is_for_another_engine(self) -> bool:
        """True if SGLang or Candle computes what another profile of the same file computes, too."""
        engines = ("sglang_vision_extract.adapter:SGLangVisionExtractAdapter", "candle:CandleEmbeddingAdapter")
        return (self.adapter_path or "").endswith(engines)

    @property
    def is_smve(self) -> bool:
        """True if SIE would return the multivectors as one sparse vector, which this version does not."""
        return "smve" in self.adapter_options.runtime.own

    def as_computed_by(self, other: "ProfileConfig") -> "ProfileConfig":
        """Return this profile with the adapter and the loading of `other`."""
        options = AdapterOptions(loadtime=other.adapter_options.loadtime, runtime=self.adapter_options.runtime)
        return self.model_copy(update={"adapter_path": other.adapter_path, "adapter_options": options})


def extended(profiles: Mapping[str, ProfileConfig], name: str) -> ProfileConfig:
    """Return a profile with its chain of `extends` applied; ValueError if the chain is broken or circular."""
    chain: list[str] = []
    while name not in chain:
        if name not in profiles:
            raise ValueError(f"profiles: there is no profile {name!r}; this file has {', '.join(profiles)}")
        chain.append(name)
        parent = profiles[name].extends
        if parent is None:
            break
        name = parent
    else:
        raise ValueError(f"profiles: extends is circular: {' extends '.join([*chain, name])}")
    resolved = profiles[chain[-1]]
    for child in reversed(chain[:-1]):
        resolved = profiles[child].over(resolved)
    return resolved


Loras = dict[Annotated[str, AfterValidator(check_name)], Annotated[str, AfterValidator(source_of)]]


def adapters(named: Mapping[str, str], profiles: Mapping[str, RuntimeOptions], source: str) -> dict[str, str]:
    """Return the location of each adapter, by name.

    A profile's `lora_id` that is not one of `named` is both the location of an adapter and its name. CatalogError if it
    is no valid location, or too long for a name.
    """
    found = dict(named)
    for profile, options in profiles.items():
        name = options.lora_id
        if name and name not in found:
            try:
                found[name] = source_of(name)
            except ValueError as exc:
                names = f"is not among loras ({', '.join(named)}), and so " if named else ""
                raise CatalogError(f"{source}: profiles.{profile}.{LORA}: {name!r} {names}{exc}") from exc
            if len(name) > LIMITS.max_lora_characters:
                too_long = (
                    f"has {len(name)} characters, more than {LIMITS.max_lora_characters}; give it a name under loras"
                )
                raise CatalogError(f"{source}: profiles.{profile}.{LORA}: {too_long}")
    return found
