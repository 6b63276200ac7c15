"""The inputs and tasks of a model file."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from sie_triton.contract import ENCODE_OUTPUTS, ITEMS, TASKS
from sie_triton.contract.spec import GENERATE
from sie_triton.contract.tensors import TEXT
from sie_triton.models.catalog.options import Frozen

# Vector outputs, which may have scales.
SCALED = tuple(name for name, output in ENCODE_OUTPUTS.items() if output.scales)

# Input kinds that SIE's model files name; no built-in family reads video.
_kinds: dict[str, Any] = {kind: (bool, kind == TEXT.name) for kind in (*ITEMS, "video")}
Inputs = create_model("Inputs", __base__=Frozen, **_kinds)


class OutputConfig(Frozen):
    """Output of encode. With `scales`, int8 and uint8 vectors come with a tensor of one scale per row."""

    dim: Annotated[int, Field(gt=0, le=10_000_000)]
    scales: bool = False


class EncodeConfig(BaseModel):
    """Outputs of encode. Other keys are outputs that the family defines."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, OutputConfig | None]

    dense: OutputConfig | None = None
    sparse: OutputConfig | None = None
    multivector: OutputConfig | None = None


class Plain(Frozen):
    """A task without options."""


class Encodes(Frozen):
    encode: EncodeConfig | None = None


_verbs: dict[str, Any] = {task: (Plain | None, None) for task in (*TASKS, GENERATE) if task != "encode"}
Tasks = create_model("Tasks", __base__=Encodes, **_verbs)
