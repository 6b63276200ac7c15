"""Audio files → mono samples at the sampling rate of a model, within limits.

Channels are mixed by their mean; soxr resamples at high quality. Of a truncated WAV or OGG file the existing part is
read; truncated FLAC and MP3 files are refused.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import AUDIO
from sie_triton.errors import InputError
from sie_triton.models.inputs.files import File, FileInput
from sie_triton.models.inputs.limits import LIMITS

Samples = npt.NDArray[np.float32]

# Allowed formats, by libsndfile's names, and how their files begin. libsndfile reads many more.
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")
BEGINNINGS = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3")
ALLOWED = "WAV, FLAC, OGG, MP3"


class AudioFile(File):
    """An audio file of a request."""


class AudioInput(FileInput):
    """Audio files."""

    file = AudioFile
    name = "audio"
    tensors = (AUDIO,)
    nothing_read = "the model reads nothing of it; send another sound"


class AudioReader:
    """Reads audio files within the limits of `runtime`, at `rate` samples per second; thread-safe.

    `max_audio_s` at that rate bounds the memory of a thread, however well a file is compressed.
    """

    def __init__(self, runtime: Runtime, rate: int) -> None:
        self._runtime, self._rate = runtime, rate

    def samples(self, file: AudioFile) -> Samples:
        """Return the samples, [samples], at least one. InputError says what is wrong with the file."""
        import soundfile

        self._check_file(file)
        with _blaming(file.where, "is not an audio file that can be read"):
            sound = soundfile.SoundFile(io.BytesIO(file.content))
        with sound:
            self._check_header(file.where, sound)
            with _blaming(file.where, "cannot be decoded"):
                blocks = list(self._blocks(file.where, sound))
        if not sum(map(len, blocks)):
            raise InputError.at(file.where, f"has less than one sample at {self._rate} Hz; send a longer sound")
        return np.concatenate(blocks)

    def _check_file(self, file: AudioFile) -> None:
        most, content = self._runtime.max_audio_bytes, file.content
        if not content:
            raise InputError.at(file.where, "is empty; send an audio file")
        if len(content) > most:
            raise InputError.at(file.where, f"has {len(content)} bytes; send at most {most}, or raise max_audio_bytes")
        is_frame_of_mp3 = len(content) > 1 and content[0] == 0xFF and content[1] & 0xE0 == 0xE0
        if not content.startswith(BEGINNINGS) and not is_frame_of_mp3:
            raise InputError.at(file.where, f"is not an audio file that can be read; send one of {ALLOWED}")

    def _check_header(self, where: str, sound: Any) -> None:
        rate, channels, most = sound.samplerate, sound.channels, self._runtime.max_audio_s
        if sound.format not in FORMATS:
            raise InputError.at(where, f"is {sound.format}, which is not supported; send one of {ALLOWED}")
        if not LIMITS.min_sampling_rate_hz <= rate <= LIMITS.max_sampling_rate_hz:
            raise InputError.at(
                where,
                f"is sampled at {rate} Hz; send {LIMITS.min_sampling_rate_hz} to {LIMITS.max_sampling_rate_hz} Hz",
            )
        if sound.frames > most * rate:
            taken = f"{sound.frames / rate:.1f} s"
            raise InputError.at(where, f"lasts {taken}; send at most {most:g} s, or raise max_audio_s")
        if sound.frames * channels > most * LIMITS.max_values_per_s:
            raise InputError.at(
                where,
                f"has {sound.frames} samples in each of {channels} channels; send fewer channels, or a lower "
                "sampling rate",
            )

    def _blocks(self, where: str, sound: Any) -> Iterator[Samples]:
        """Decode, mix and resample block by block. libsndfile returns at most as many samples as the header says."""
        import soxr

        rate, num_read = sound.samplerate, 0
        stream = None if rate == self._rate else soxr.ResampleStream(rate, self._rate, 1, dtype="float32")
        while len(
            block := sound.read(max(1, LIMITS.samples_at_once // sound.channels), dtype="float32", always_2d=True)
        ):
            num_read += len(block)
            mono = _mixed(where, block)
            yield mono if stream is None else stream.resample_chunk(mono)
        if num_read < LIMITS.min_decoded_share * sound.frames:
            raise InputError.at(where, f"ends after {num_read} of {sound.frames} samples; send a whole file")
        if stream is not None:
            yield stream.resample_chunk(np.empty(0, np.float32), last=True)


def _mixed(where: str, block: Samples) -> Samples:
    """Mix channels: [samples, channels] → [samples]."""
    mono: Samples = block[:, 0] if block.shape[1] == 1 else block.mean(1)
    if not (np.abs(mono) <= LIMITS.max_magnitude).all():
        raise InputError.at(
            where, f"has samples that are not numbers, or beyond ±{LIMITS.max_magnitude:g}; send samples from -1 to 1"
        )
    return np.ascontiguousarray(mono)


@contextmanager
def _blaming(where: str, what: str) -> Iterator[None]:
    """Turn any exception of the libraries into an InputError about the file; our own errors pass."""
    try:
        yield
    except (InputError, MemoryError, ImportError):
        raise
    except Exception as exc:
        # The message of libsndfile alone: the exception's text begins with the repr of an object.
        said = str(getattr(exc, "error_string", "") or type(exc).__name__).splitlines()[0][:120].rstrip(". ")
        raise InputError.at(where, f"{what} ({said}); send a whole file, one of {ALLOWED}") from exc
