"""A model file's profiles and their options."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

# Options of a request's profile that decide how weights are run, beside those of the family.
SHARED = ("max_seq_length", "lora_id")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MuveraOptions(Frozen):
    """Of SIE's model files; see sie_triton.spec.MuveraConfig."""

    num_repetitions: Annotated[int, Field(ge=1, le=1000)] = 40
    num_simhash_projections: Annotated[int, Field(ge=1, le=12)] = 6
    projection_dim: Annotated[int, Field(ge=1, le=100_000)] | None = None
    final_projection_dim: Annotated[int, Field(ge=1, le=1_000_000)] | None = 10240
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    normalize: bool = False
    center_tokens: bool = False


class LoadtimeOptions(BaseModel):
    """What else stands here belongs to the family; see sie_triton.families.Options."""

    model_config = ConfigDict(frozen=True, extra="allow")

    trust_remote_code: bool = False

    @property
    def own(self) -> dict[str, Any]:
        """What the file says for the family."""
        return self.__pydantic_extra__ or {}


def check_template(template: str) -> str:
    """`{text}` once, `{instruction}` where it is wanted, and no other braces."""
    fields = re.findall(r"\{[^{}]*\}?|\}", template)
    if template and (fields.count("{text}") != 1 or set(fields) - {"{text}", "{instruction}"}):
        raise ValueError("must hold {text} once, and no braces but those of {text} and {instruction}")
    return template


Template = Annotated[str, AfterValidator(check_template)]


class RuntimeOptions(BaseModel):
    """What a profile may say of its requests; what else stands here are options or request parameters of the family.

    `output_similarity` is for readers of the file.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

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

    @property
    def own(self) -> dict[str, Any]:
        """What the file says for the family."""
        return self.__pydantic_extra__ or {}


class AdapterOptions(Frozen):
    loadtime: LoadtimeOptions = LoadtimeOptions()
    runtime: RuntimeOptions = RuntimeOptions()


class Profile(Frozen):
    extends: str | None = None
    max_batch_tokens: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    compute_precision: Literal["float16", "bfloat16", "float32"] | None = None
    adapter_path: str | None = None
    engine: str | None = None
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
            engine=self.engine or parent.engine,
            adapter_options=AdapterOptions(
                loadtime=mine.loadtime if mine.loadtime.model_fields_set else theirs.loadtime,
                runtime=mine.runtime if mine.runtime.model_fields_set else theirs.runtime,
            ),
        )

    def differs(self, other: "Profile", options: frozenset[str]) -> list[str]:
        """In what decides how weights are loaded and run: profiles that differ in it cannot share them.

        `options` are the names of those of the family.
        """
        mine, theirs = (each._loading(options) for each in (self, other))
        return [key for key in mine if mine[key] != theirs[key]]

    def _loading(self, options: frozenset[str]) -> dict[str, object]:
        runtime = self.adapter_options.runtime
        given = {
            **{key: getattr(runtime, key) for key in SHARED},
            **{key: runtime.own.get(key) for key in sorted(options)},
        }
        return {
            "adapter_path": self.adapter_path,
            "engine": self.engine,
            "compute_precision": self.compute_precision,
            "adapter_options.loadtime": self.adapter_options.loadtime,
            **{f"adapter_options.runtime.{key}": value for key, value in given.items()},
        }

    def with_muvera(self) -> RuntimeOptions:
        """`runtime`, an empty `muvera` filled from loadtime's `muvera_config`."""
        runtime, configured = self.adapter_options.runtime, self.adapter_options.loadtime.own.get("muvera_config")
        if runtime.muvera is None or runtime.muvera.model_fields_set or configured is None:
            return runtime
        return runtime.model_copy(update={"muvera": MuveraOptions.model_validate(configured)})
