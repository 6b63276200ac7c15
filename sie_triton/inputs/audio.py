"""Sounds: files as clients send them → samples of one channel, at the rate that a model reads, within limits.

Channels are mixed by their mean; soxr resamples, at its high quality. A WAV or OGG file that was cut short is as long
as what is there of it; FLAC and MP3 are refused then.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract.tensors import AUDIO
from sie_triton.errors import InputError
from sie_triton.inputs.base import InputKind
from sie_triton.spec import Runtime

Samples = npt.NDArray[np.float32]

# What libsndfile calls those that are read, and how their files begin: it knows many more, for whom nobody asks.
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")
BEGINNINGS = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3")
ALLOWED = "WAV, FLAC, OGG, MP3"

# Samples a second; resampling from less would make much of nothing.
MIN_RATE, MAX_RATE = 1_000, 384_000

# Samples of all channels for each second that a file may take, so that what is silent costs little too.
MAX_VALUES_PER_S = 384_000

# Decoded at once.
BLOCK = 1 << 20

# Louder than any sound, and than what is written without being scaled; the squares of more are no numbers.
LOUDEST = 1e9

# Less of what the header promises is a file that was cut short. MP3 has no exact length.
WHOLE = 0.9


@dataclass(frozen=True, slots=True)
class AudioFile:
    """What a client sent; `where` is how it is called there."""

    content: bytes
    where: str

    def __len__(self) -> int:
        return len(self.content)


class AudioInput(InputKind):
    """Sizes are bytes of the files."""

    name = "audio"
    tensors = (AUDIO,)
    max_elements = 16
    max_size = 1024 * 1024
    chunk_size = 1024 * 1024
    nothing_read = "nothing can be read of it; send another sound"

    def decode(self, raw: bytes, where: str) -> AudioFile:
        return AudioFile(raw, where)

    def size(self, element: Any) -> int:
        return len(element)

    def sample_length(self, rng: np.random.Generator) -> int:
        return 1


class AudioReader:
    """Reads audio files within the limits of `runtime`, at `rate` samples a second; called by several threads.

    What a thread holds is bounded by `max_audio_s` at that rate, however a file is packed.
    """

    def __init__(self, runtime: Runtime, rate: int) -> None:
        self._runtime, self._rate = runtime, rate

    def samples(self, file: AudioFile) -> Samples:
        """[samples], one or more; InputError says what is wrong with the file."""
        import soundfile

        self._check_file(file)
        with _blaming(file.where, "is no sound that can be read"):
            sound = soundfile.SoundFile(io.BytesIO(file.content))
        with sound:
            self._check_header(file.where, sound)
            with _blaming(file.where, "cannot be decoded"):
                blocks = list(self._blocks(file.where, sound))
        if not sum(map(len, blocks)):
            raise InputError(f"{file.where}: holds no sound, less than a sample at {self._rate} Hz; send a longer one")
        return np.concatenate(blocks)

    def _check_file(self, file: AudioFile) -> None:
        most, content = self._runtime.max_audio_bytes, file.content
        if not content:
            raise InputError(f"{file.where}: is empty; send an audio file")
        if len(content) > most:
            raise InputError(f"{file.where}: has {len(content)} bytes; send at most {most}, or raise max_audio_bytes")
        is_frame_of_mp3 = len(content) > 1 and content[0] == 0xFF and content[1] & 0xE0 == 0xE0
        if not content.startswith(BEGINNINGS) and not is_frame_of_mp3:
            raise InputError(f"{file.where}: is no sound that can be read; send one of {ALLOWED}")

    def _check_header(self, where: str, sound: Any) -> None:
        rate, channels, most = sound.samplerate, sound.channels, self._runtime.max_audio_s
        if sound.format not in FORMATS:
            raise InputError(f"{where}: is {sound.format}, which is not read; send one of {ALLOWED}")
        if not MIN_RATE <= rate <= MAX_RATE:
            raise InputError(f"{where}: is sampled at {rate} Hz; send {MIN_RATE} to {MAX_RATE} Hz")
        if sound.frames > most * rate:
            taken = f"{sound.frames / rate:.1f} s"
            raise InputError(f"{where}: takes {taken}; send at most {most:g} s, or raise max_audio_s")
        if sound.frames * channels > most * MAX_VALUES_PER_S:
            raise InputError(
                f"{where}: has {sound.frames} samples of each of {channels} channels; send fewer channels, or at a "
                "lower rate"
            )

    def _blocks(self, where: str, sound: Any) -> Iterator[Samples]:
        """libsndfile gives no more than the header says, whatever follows."""
        import soxr

        rate, num_read = sound.samplerate, 0
        stream = None if rate == self._rate else soxr.ResampleStream(rate, self._rate, 1, dtype="float32")
        while len(block := sound.read(max(1, BLOCK // sound.channels), dtype="float32", always_2d=True)):
            num_read += len(block)
            mono = _mixed(where, block)
            yield mono if stream is None else stream.resample_chunk(mono)
        if num_read < WHOLE * sound.frames:
            raise InputError(f"{where}: ends after {num_read} of {sound.frames} samples; send a whole file")
        if stream is not None:
            yield stream.resample_chunk(np.empty(0, np.float32), last=True)


def _mixed(where: str, block: Samples) -> Samples:
    """[samples, channels] → [samples]"""
    mono: Samples = block[:, 0] if block.shape[1] == 1 else block.mean(1)
    if not (np.abs(mono) <= LOUDEST).all():
        raise InputError(f"{where}: has samples that are no numbers, or beyond ±{LOUDEST:g}; send them from -1 to 1")
    return np.ascontiguousarray(mono)


@contextmanager
def _blaming(where: str, what: str) -> Iterator[None]:
    """What the libraries raise, of whatever kind, is the file's fault; our own errors pass."""
    try:
        yield
    except (InputError, MemoryError, ImportError):
        raise
    except Exception as exc:
        # libsndfile's own words; the exception's begin with an object that is of no use to anybody.
        said = str(getattr(exc, "error_string", "") or type(exc).__name__).splitlines()[0][:120].rstrip(". ")
        raise InputError(f"{where}: {what} ({said}); send a whole file, one of {ALLOWED}") from exc
