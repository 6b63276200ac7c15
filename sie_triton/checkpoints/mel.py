"""Spectrogram settings of a checkpoint, as transformers' feature extractors write them."""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, shortened
from sie_triton.checkpoints.image_processor import SOUNDS, processor_fields
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.errors import LoadError

CLASS = "ClapFeatureExtractor"
WHISPER = "WhisperFeatureExtractor"


@dataclass(frozen=True, slots=True)
class MelPlan:
    """Computation of spectrograms."""

    rate: int  # samples a second
    window: int  # number of samples that the model reads
    frame_length: int  # in samples
    hop: int  # in samples, from the start of a frame to that of the next
    num_bands: int  # from `lowest` to `highest` Hz
    lowest: float
    highest: float
    padding: str  # how shorter sounds are filled up
    is_fused: bool  # a longer sound is read as a shrunk whole and three crops

    @classmethod
    def read(cls, directory: Path) -> "MelPlan":
        """Read the settings; raise LoadError naming the key that cannot be used."""
        fields = processor_fields(directory, SOUNDS, CLASS, (CLASS,))
        rate = fields.integer("sampling_rate", least=1000, most=LIMITS.max_sampling_rate_hz)
        window = rate * fields.integer("max_length_s", least=1, most=600)
        plan = cls(
            rate,
            window,
            fields.integer("fft_window_size", least=16, most=1 << 16),
            fields.integer("hop_length", least=1, most=window),
            fields.integer("feature_size", least=1, most=1024),
            fields.number("frequency_min"),
            fields.number("frequency_max"),
            _one_of(fields, "padding", ("repeatpad", "repeat", "pad")),
            _one_of(fields, "truncation", ("fusion", "rand_trunc")) == "fusion",
        )
        plan.check(fields)
        return plan

    @classmethod
    def of_whisper(cls, directory: Path) -> "MelPlan":
        """Read the settings of Whisper's feature extractor. Errors as in `read`."""
        fields = processor_fields(directory, SOUNDS, WHISPER, (WHISPER,))
        for key, value in {"dither": 0.0, "padding_value": 0.0, "padding_side": "right"}.items():
            if fields.values.get(key, value) != value:
                raise fields.unserved(f"{key} {shortened(fields.values[key])} cannot be served; it must be {value}")
        rate = fields.integer("sampling_rate", least=1000, most=LIMITS.max_sampling_rate_hz)
        window = rate * fields.integer("chunk_length", least=1, most=600)
        frame = fields.integer("n_fft", least=16, most=1 << 16)
        hop = fields.integer("hop_length", least=1, most=window)
        bands = fields.integer("feature_size", least=1, most=1024)
        return cls(rate, window, frame, hop, bands, 0.0, 8000.0, "pad", is_fused=False)

    def check(self, fields: Fields) -> None:
        """Raise LoadError if the numbers contradict each other."""
        if not 0 <= self.lowest < self.highest:
            message = "frequency_min and frequency_max must be at least 0, the first the lower"
            raise fields.corrupt(f"{message} (given {self.lowest:g} and {self.highest:g})")
        if self.is_fused and self.num_frames != self.window // self.hop + 1:
            message = f"{fields.where}: fft_window_size {self.frame_length} cannot be served with truncation fusion"
            why = f"sounds of a window have {self.num_frames} frames, longer ones {self.window // self.hop + 1}"
            raise LoadError(f"{message}: {why}; an even size makes them equal", "unsupported")

    @property
    def num_frames(self) -> int:
        """Frames in one window: half a frame is added at both ends, rounded down."""
        return (self.window - self.frame_length % 2) // self.hop + 1

    @property
    def size(self) -> int:
        """Numbers in the spectrogram of one window."""
        return self.num_frames * self.num_bands


def _one_of(fields: Fields, key: str, allowed: tuple[str, ...]) -> str:
    value = fields.values[key]
    if value not in allowed:
        raise fields.unserved(f"{key} {shortened(value)} is unknown; supported are {', '.join(allowed)}")
    return str(value)
