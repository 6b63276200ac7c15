"""Samples → mel spectrograms, as transformers' feature extractors of CLAP and Whisper make them. No torch.

Where CLAP's extractor chooses at random, the choice here is fixed. Of a sound longer than a window
- a model with fusion reads the whole sound, shrunk to one window, and the middle cut of each third;
- any other model reads as few windows as cover the sound, spread evenly from its start to its end.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.checkpoints.mel import MelPlan
from sie_triton.contract import Ragged
from sie_triton.contract.arrays import Floats
from sie_triton.contract.tensors import MEL

Filters = npt.NDArray[np.float64]

# Frames transformed together. Bounds the memory for a long sound.
FRAMES = 1024


# Slaney's mel scale: linear up to this frequency, logarithmic above it.
KNEE_HZ, MEL_PER_HZ = 1000.0, 3 / 200
MEL_PER_E = 27 / np.log(6.4)


def spectrograms(samples: Floats, plan: MelPlan) -> Floats:
    """Compute the spectrograms that the model reads of a sound, [spectrograms, frames, bands].

    There is one for each window. Of a sound longer than a window, a model with fusion reads four: the whole, and three
    cuts.
    """
    if len(samples) <= plan.window:
        return _of(filled(samples, plan), plan)[None]
    if plan.is_fused:
        return fused(_of(samples, plan), plan.num_frames)
    return np.stack([_of(samples[start : start + plan.window], plan) for start in starts(len(samples), plan.window)])


def filled(samples: Floats, plan: MelPlan) -> Floats:
    """Fill a sound up to one window: with whole copies ("repeatpad"), copies and a part of one ("repeat"), or zeros."""
    times = 1 if plan.padding == "pad" else plan.window // len(samples) + (plan.padding == "repeat")
    repeated = np.tile(samples, times)[: plan.window]
    return np.pad(repeated, (0, plan.window - len(repeated)))


def starts(num_samples: int, window: int) -> list[int]:
    """Return the starts of the fewest windows of equal length that cover a sound.

    >>> starts(25, 10), starts(20, 10), starts(11, 10)
    ([0, 8, 15], [0, 10], [0, 1])
    """
    count = -(-num_samples // window)
    return [round(i * (num_samples - window) / (count - 1)) for i in range(count)]


def fused(mel: Floats, num_frames: int) -> Floats:
    """Fuse a long sound: [frames, bands] → [4, num_frames, bands], or [1, …] if it is not longer than a window."""
    if len(mel) == num_frames:
        return mel[None]
    thirds = np.array_split(np.arange(len(mel) - num_frames + 1), 3)
    cuts = [int(third[len(third) // 2]) if len(third) else 0 for third in thirds]
    return np.stack([shrunk(mel, num_frames), *(mel[cut : cut + num_frames] for cut in cuts)])


def shrunk(mel: Floats, num_frames: int) -> Floats:
    """Shrink to `num_frames` by linear interpolation; places are computed in float32, as in the library."""
    scale, half = np.float32(len(mel) / num_frames), np.float32(0.5)
    places = np.maximum((np.arange(num_frames, dtype=np.float32) + half) * scale - half, 0)
    before = places.astype(np.int64)
    after = np.minimum(before + 1, len(mel) - 1)
    share = (places - before)[:, None]
    between: Floats = (mel[before] * (1 - share) + mel[after] * share).astype(np.float32)
    return between


def whisper_spectrogram(samples: Floats, plan: MelPlan) -> Floats:
    """Compute [frames, bands] of a whole sound, filled up with zeros to one window if it is shorter.

    The decimal logarithms of powers at most 80 dB below the loudest, shifted and divided by 4.
    """
    mel = _of(np.pad(samples, (0, max(0, plan.window - len(samples)))), plan)[:-1] / 10
    clipped: Floats = (np.maximum(mel, mel.max() - 8) + 4) / 4
    return clipped


def _of(samples: Floats, plan: MelPlan) -> Floats:
    """Compute decibels, [frames, bands], a frame per hop, the first centred on the first sample; ends are mirrored."""
    half = plan.frame_length // 2
    around = np.pad(samples, half, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(around, plan.frame_length)[:: plan.hop]
    filters = filters_of(plan)
    mel = np.empty((len(frames), plan.num_bands), np.float32)
    for start in range(0, len(frames), FRAMES):
        spectrum = np.fft.rfft(frames[start : start + FRAMES] * hann(plan.frame_length))
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        mel[start : start + FRAMES] = 10 * np.log10(np.maximum(power @ filters, 1e-10))  # -100 dB at least
    return mel


@cache
def hann(length: int) -> Filters:
    window: Filters = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    return window


@cache
def filters_of(plan: MelPlan) -> Filters:
    """Return the mel filters [frequencies, bands]: triangles between the peaks of their neighbours.

    CLAP models with fusion were trained with torchaudio's filters, the others with librosa's.
    """
    num_bins = plan.frame_length // 2 + 1
    if plan.is_fused:
        edges = htk_hz(np.linspace(htk_mel(plan.lowest), htk_mel(plan.highest), plan.num_bands + 2))
    else:
        edges = slaney_hz(np.linspace(slaney_mel(plan.lowest), slaney_mel(plan.highest), plan.num_bands + 2))
    frequencies = np.linspace(0, plan.rate // 2, num_bins)[:, None]
    rising = (frequencies - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - frequencies) / np.diff(edges)[1:]
    triangles: Filters = np.maximum(0, np.minimum(rising, falling))
    return triangles if plan.is_fused else triangles * (2 / (edges[2:] - edges[:-2]))


def htk_mel(hz: float) -> float:
    """
    >>> round(htk_mel(1000), 1), round(float(htk_hz(htk_mel(440.0))), 6)
    (1000.0, 440.0)
    """
    return float(2595 * np.log10(1 + hz / 700))


def htk_hz(mel: Any) -> Any:
    return 700 * (10 ** (mel / 2595) - 1)


def slaney_mel(hz: float) -> float:
    """
    >>> slaney_mel(1000), slaney_mel(6400), round(float(slaney_hz(slaney_mel(8000.0))), 6)
    (15.0, 42.0, 8000.0)
    """
    return float(hz * MEL_PER_HZ if hz < KNEE_HZ else KNEE_HZ * MEL_PER_HZ + MEL_PER_E * np.log(hz / KNEE_HZ))


def slaney_hz(mel: Any) -> Any:
    above = np.asarray(mel) - KNEE_HZ * MEL_PER_HZ
    return np.where(above < 0, mel / MEL_PER_HZ, KNEE_HZ * np.exp(above / MEL_PER_E))


def packed_mels(sounds: Sequence[Floats | None]) -> dict[str, Ragged]:
    """Pack the spectrograms of items; None: the item has no sound."""
    lengths = np.array([0 if sound is None else sound.size for sound in sounds], np.int32)
    flat = [sound.reshape(-1) for sound in sounds if sound is not None]
    return {MEL.name: Ragged(np.concatenate(flat) if flat else np.empty(0, np.float32), lengths)}
