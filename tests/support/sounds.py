"""Sound files of every kind that clients send, from a fixed seed."""

import io
from collections.abc import Sequence
from functools import cache

import numpy as np
import soundfile

RATE = 48_000


def sound(seconds: float = 1.0, rate: int = RATE, channels: int = 1, seed: int = 0) -> np.ndarray:
    """float32 [samples, channels]: tones that slide, each part of it another, with some noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * rate))[:, None] / rate
    pitch, slide = rng.uniform(100, 2500, (2, channels))
    tones = [np.sin(2 * np.pi * k * (pitch * t + slide * np.sin(t * (1 + seed)) / 3)) / k for k in (1, 2, 3)]
    return (0.2 * sum(tones) + rng.normal(0, 0.02, t.shape)).astype(np.float32)


def saved(samples: np.ndarray, rate: int = RATE, kind: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def sounds(seconds: Sequence[float] = (0.3, 1.0, 0.05, 2.4)) -> list[bytes]:
    return [saved(sound(s, seed=i), kind="FLAC" if i % 2 else "WAV") for i, s in enumerate(seconds)]


@cache
def of_all_kinds() -> dict[str, bytes]:
    def one(kind: str, subtype: str, rate: int = RATE, channels: int = 1) -> bytes:
        return saved(sound(0.9, rate, channels), rate, kind, subtype)

    return {
        "wav": one("WAV", "PCM_16"),
        "wav of 8 bits": one("WAV", "PCM_U8"),
        "wav of 24 bits": one("WAV", "PCM_24", 44_100, 2),
        "wav of 32 bits": one("WAV", "PCM_32"),
        "wav of floats": one("WAV", "FLOAT", 44_100),
        "wav of doubles": one("WAV", "DOUBLE", 22_050),
        "wav, µ-law": one("WAV", "ULAW", 8_000),
        "wav, adpcm": one("WAV", "IMA_ADPCM", 16_000),
        "wavex": one("WAVEX", "PCM_16", channels=6),
        "rf64": one("RF64", "PCM_16"),
        "8 kHz": one("WAV", "PCM_16", 8_000),
        "11,025 Hz": one("WAV", "PCM_16", 11_025, 2),
        "16 kHz": one("FLAC", "PCM_16", 16_000),
        "96 kHz": one("WAV", "PCM_24", 96_000, 2),
        "192 kHz": one("FLAC", "PCM_24", 192_000),
        "flac": one("FLAC", "PCM_16"),
        "flac of 24 bits": one("FLAC", "PCM_24", 44_100, 2),
        "ogg": one("OGG", "VORBIS"),
        "ogg, stereo": one("OGG", "VORBIS", 44_100, 2),
        "opus": one("OGG", "OPUS", 48_000, 2),
        "mp3": one("MP3", "MPEG_LAYER_III", 44_100),
        "mp3, stereo": one("MP3", "MPEG_LAYER_III", 48_000, 2),
    }
