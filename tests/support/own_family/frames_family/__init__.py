"""A family outside sie_triton: texts as frames of four numbers, one frame a character."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from sie_triton.checkpoints.files import has_file, read_fields
from sie_triton.contract import ENCODE_OUTPUTS, Output, Parameter
from sie_triton.contract.tensors import Tensor
from sie_triton.models.families import Family, Options, Recognised

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


class Frames(Family):
    outputs = (ENCODE_OUTPUTS["dense"], Output(SPECTRUM.name, (SPECTRUM, SPECTRUM_LENGTHS)))
    features = (FRAMES,)
    parameters = (POWER,)
    options = FramesOptions
    processor_module = ".processor"
    engines: ClassVar = {"frames_family.engine:NumpyEngine": ".adapter"}
    files = ("*.npz",)

    def recognise(self, directory: Path) -> Recognised | None:
        if not has_file(directory / CONFIG):
            return None
        config = read_fields(directory / CONFIG)
        bands = config.integer("bands", least=1)
        dims = {"dense": bands, SPECTRUM.name: bands}
        return Recognised(f"it has {CONFIG}", config.integer("max_frames", least=1), dims, normalize=True)
