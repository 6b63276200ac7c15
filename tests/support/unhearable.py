"""Audio files that are damaged, are not audio, or would be too costly to decode."""

import struct
from collections.abc import Iterator
from functools import cache

import numpy as np

from tests.support.sounds import saved, sound

NONE, EMPTY, NOTHING, TOO_LONG = (
    "is not an audio file that can be read",
    "is empty",
    "has less than one sample",
    "lasts ",
)
NO_NUMBERS = "has samples that are not numbers"

# As players write it, with nothing in it.
TAG = b"ID3\x03\x00\x00\x00\x00\x00\x0a" + bytes(10)


@cache
def unreadable() -> dict[str, tuple[bytes, str]]:
    """Name → the file, and a part of its error message."""
    return {**dict(_truncated()), **dict(_of_another_kind()), **dict(_too_much()), **dict(_damaged())}


def _truncated() -> Iterator[tuple[str, tuple[bytes, str]]]:
    for kind in ("WAV", "FLAC", "OGG", "MP3"):
        whole = saved(sound(2, 44_100), 44_100, kind)
        yield f"{kind} of four bytes", (whole[:4], NONE)
        if kind in ("FLAC", "MP3"):
            for share in (0.1, 0.5, 0.8):
                yield f"{kind} cut at {share:.0%}", (whole[: int(len(whole) * share)], "send a whole file")
    yield "wav without data", (wav(data=b""), NOTHING)
    yield "wav of a sample, which is none at a third of its rate", (wav(data=b"\x00\x10"), NOTHING)


def _of_another_kind() -> Iterator[tuple[str, tuple[bytes, str]]]:
    yield "nothing", (b"", EMPTY)
    yield "text", (b"hello, I am no sound", NONE)
    yield "zeros", (bytes(10_000), NONE)
    yield "noise", (np.random.default_rng(0).bytes(10_000), NONE)
    yield "html", (b"<html><body>404</body></html>", NONE)
    yield "png", (b"\x89PNG\r\n\x1a\n" + bytes(100), NONE)
    yield "m4a", (b"\x00\x00\x00\x20ftypM4A " + bytes(100), NONE)
    yield "webm", (b"\x1a\x45\xdf\xa3" + bytes(100), NONE)
    yield "avi", (b"RIFF\x64\x00\x00\x00AVI LIST" + bytes(100), NONE)
    yield "a format that is not read", (saved(sound(0.1), kind="AIFF"), NONE)
    yield "one behind a tag", (TAG + saved(sound(0.1), kind="AIFF"), "is AIFF, which is not supported; send one of WAV")
    yield "ogg of a film", (b"OggS" + bytes(22) + b"\x01\x2a\x80theora" + bytes(100), NONE)


def _too_much() -> Iterator[tuple[str, tuple[bytes, str]]]:
    yield "an hour", (wav(rate=1000, bits=8, block=1, data=bytes(1000 * 3600)), "lasts 3600.0 s; send at most 600 s")
    yield "an hour, packed", (saved(np.zeros(1000 * 3600, np.int16), 1000, "FLAC"), "lasts 3600.0 s")
    yield "a header of hours and no data", (wav(size=0xFFFFFF00, data=b""), NOTHING)
    yield "a flac of years", (flac_of((1 << 36) - 1), "")
    yield "a flac of twice as much as there is", (flac_of(2 * 48_000), "")
    yield "5000 channels", (wav(channels=5000, data=bytes(100_000)), NONE)


def _damaged() -> Iterator[tuple[str, tuple[bytes, str]]]:
    yield "0 Hz", (wav(rate=0), NONE)
    yield "1 Hz", (wav(rate=1), "is sampled at 1 Hz; send 1000 to 384000 Hz")
    yield "2 GHz", (wav(rate=2_000_000_000), "is sampled at 2000000000 Hz")
    yield "4 GHz", (wav(rate=4_000_000_000), NONE)
    yield "0 channels", (wav(channels=0), NONE)
    yield "samples of 0 bits", (wav(bits=0, block=2), "")
    yield "a codec that nobody knows", (wav(codec=0x99), NONE)
    yield "NaN", (floats([0.1, float("nan"), 0.2]), NO_NUMBERS)
    yield "infinite", (floats([0.1, float("-inf")]), NO_NUMBERS)
    yield "beyond all sounds", (floats([0.1, 3e38]), NO_NUMBERS)
    yield "mp3 of nothing but beginnings", (b"\xff\xfb\x90\x00" * 50_000, NONE)
    yield "mp3 and then noise", (b"\xff\xfb\x90\x00" + np.random.default_rng(1).bytes(1_000_000), NONE)
    yield "a tag and nothing", (b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f", NONE)
    whole = bytearray(saved(sound(1), kind="FLAC"))
    whole[len(whole) // 2 : len(whole) // 2 + 200] = bytes(200)
    yield "flac with a hole", (bytes(whole), "")


def readable() -> dict[str, bytes]:
    """Files with harmless oddities, which are read."""
    whole = saved(sound(1))
    return {
        "something behind the end": whole + b"behind",
        "mp3 behind a tag": TAG + saved(sound(1), kind="MP3"),
        "a few samples": wav(data=b"\x00\x10" * 6),
        "1000 channels": wav(channels=1000, rate=1000, data=bytes(2 * 1000 * 2000)),
        "half a sample at the end": whole + b"\x01",
        "a wav cut short": whole[: len(whole) // 2],
        "an ogg cut short": (ogg := saved(sound(1), kind="OGG"))[: len(ogg) * 2 // 3],
        "a header of hours and a second of data": wav(size=0xFFFFFF00, data=whole[44:]),
        "silence": wav(data=bytes(9600)),
        "louder than can be": floats([1.5, -3.0] * 100),
        "32 channels": saved(sound(0.1, channels=32)),
    }


def wav(
    rate: int = 48_000,
    channels: int = 1,
    bits: int = 16,
    data: bytes = bytes(200),
    size: int | None = None,
    codec: int = 1,
    block: int | None = None,
) -> bytes:
    """WAV file with any header."""
    size, block = len(data) if size is None else size, channels * bits // 8 if block is None else block
    form = struct.pack("<HHIIHH", codec, channels, rate, rate * block & 0xFFFFFFFF, block & 0xFFFF, bits)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", 36 + size & 0xFFFFFFFF) + chunks


def floats(samples: list[float]) -> bytes:
    return wav(bits=32, codec=3, data=struct.pack(f"<{len(samples)}f", *samples))


def flac_of(num_samples: int) -> bytes:
    """FLAC file of a second, whose header claims another length."""
    whole = saved(sound(1), kind="FLAC")
    said = int.from_bytes(whole[18:26], "big") >> 36 << 36 | num_samples
    return whole[:18] + said.to_bytes(8, "big") + whole[26:]
