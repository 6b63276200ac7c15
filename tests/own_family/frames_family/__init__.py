"""A family outside sie_triton: texts as frames of four numbers, one frame a character."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from sie_triton.checkpoints.files import has_file, read_fields
from sie_triton.contract import ENCODE_OUTPUTS, Features, Output, Parameter, Part, Ragged
from sie_triton.contract.tensors import Tensor
from sie_triton.families import Adapter, Family, Options, Recognised
from sie_triton.inputs import Frame, Processor
from sie_triton.inputs.prompt import prompt_of
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from frames_family.engine import NumpyEngine

CONFIG = "frames.json"
WIDTH = 4

FRAMES = Tensor("frames", "FP32", (-1, WIDTH), "[characters, 4] code, upper case, digit, space", "frame_lengths")
SPECTRUM_LENGTHS = Tensor("spectrum_lengths", "INT32", (-1,), "[n] frames of each item")
SPECTRUM = Tensor("spectrum", "FP32", (-1, -1), "[frames, bands]", SPECTRUM_LENGTHS.name)
POWER = Parameter("power", float, minimum=1, maximum=4, doc="of each entry of the spectrum; 1 where nobody says")


@dataclass(frozen=True)
class FramesOptions(Options):
    """`window`: how much each frame counts in `dense`, which is their mean."""

    window: Literal["none", "hann"] = "none"


class FramesProcessor(Processor):
    """Cuts each text to `max_frames` characters."""

    def __init__(self, max_frames: int) -> None:
        self._max_frames = max_frames

    def frame(self, part: Part) -> Frame:
        return prompt_of({}, "", part)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        texts = [text[: self._max_frames] for text in framed]
        frames = [[ord(c) / 128, c.isupper(), c.isdigit(), c.isspace()] for text in texts for c in text]
        lengths = np.fromiter(map(len, texts), np.int32, len(texts))
        return {FRAMES.name: Ragged(np.array(frames, np.float32).reshape(-1, WIDTH), lengths)}


class Frames(Family):
    outputs = (ENCODE_OUTPUTS["dense"], Output(SPECTRUM.name, (SPECTRUM, SPECTRUM_LENGTHS)))
    features = (FRAMES,)
    parameters = (POWER,)
    options = FramesOptions
    engines: ClassVar = {"frames_family.engine:NumpyEngine": ".adapter"}
    files = ("*.npz",)

    def recognise(self, directory: Path) -> Recognised | None:
        if not has_file(directory / CONFIG):
            return None
        config = read_fields(directory / CONFIG)
        bands = config.integer("bands", least=1)
        dims = {"dense": bands, SPECTRUM.name: bands}
        return Recognised(f"it has {CONFIG}", config.integer("max_frames", least=1), dims, normalize=True)

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        return FramesProcessor(spec.max_sequence_length)

    def load(self, spec: ModelSpec, directory: Path, engine: "NumpyEngine") -> Adapter:
        from frames_family.adapter import FramesAdapter

        options: FramesOptions = self.options_of(spec)
        return FramesAdapter(engine.encoder(directory), options.window == "hann")
