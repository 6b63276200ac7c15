"""Spectrogram settings of a checkpoint, as transformers' feature extractors write them."""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.image_processor import number, processor_fields
from sie_triton.errors import LoadError

PADDINGS = ("repeatpad", "repeat", "pad")
TRUNCATIONS = ("fusion", "rand_trunc")

MAX_RATE = 384_000
MAX_WINDOW_S = 600


@dataclass(frozen=True, slots=True)
class MelPlan:
    """Computation of spectrograms.

    A spectrogram has `num_bands` mel bands from `lowest` to `highest` Hz, at `rate` samples a second; a frame of
    `frame_length` samples begins every `hop` samples.

    The model reads `window` samples. Shorter sounds are filled up as `padding` says. With `is_fused`, the model reads a
    longer sound as a shrunk whole and three crops.
    """

    rate: int
    window: int
    frame_length: int
    hop: int
    num_bands: int
    lowest: float
    highest: float
    padding: str
    is_fused: bool

    @classmethod
    def read(cls, directory: Path) -> "MelPlan":
        """Read the settings; raise LoadError naming the key that cannot be used."""
        fields = processor_fields(directory, "feature_extractor")
        rate = fields.integer("sampling_rate", 48_000, least=1000, most=MAX_RATE)
        length = fields.integer("fft_window_size", 1024, least=16, most=1 << 16)
        plan = cls(
            rate,
            rate * fields.integer("max_length_s", 10, least=1, most=MAX_WINDOW_S),
            length,
            fields.integer("hop_length", 480, least=1, most=length),
            fields.integer("feature_size", 64, least=1, most=1024),
            number(fields, "frequency_min", 0.0),
            number(fields, "frequency_max", 14_000.0),
            fields.one_of("padding", PADDINGS),
            fields.one_of("truncation", TRUNCATIONS) == "fusion",
        )
        plan.check(fields)
        return plan

    def check(self, fields: Fields) -> None:
        """Raise LoadError if the numbers contradict each other."""
        if not 0 <= self.lowest < self.highest <= self.rate / 2:
            message = f"frequency_min and frequency_max must be from 0 to {self.rate / 2:g} Hz, the first the lower"
            raise LoadError(f"{fields.where}: {message} (given {self.lowest:g} and {self.highest:g})", "corrupt")
        if self.window <= self.frame_length:
            raise LoadError(
                f"{fields.where}: max_length_s: must be longer than a frame of fft_window_size samples", "corrupt"
            )

    @property
    def num_frames(self) -> int:
        """Frames in one window."""
        return self.window // self.hop + 1

    @property
    def size(self) -> int:
        """Numbers in the spectrogram of one window."""
        return self.num_frames * self.num_bands
