"""Audio files: which are read, and how others are refused, in bounded time and memory."""

import io
import os
import tracemalloc

import numpy as np
import pytest
import soundfile
import soxr

from sie_triton.client.items import encoded
from sie_triton.contract.spec import Runtime
from sie_triton.errors import InputError
from sie_triton.models.inputs.audio import AudioFile, AudioReader
from sie_triton.system.host.process_memory import share_of
from tests.support.sounds import of_all_kinds, saved, sound
from tests.support.unhearable import readable, unreadable, wav

UNREADABLE, READABLE, KINDS = unreadable(), readable(), of_all_kinds()


def read(content, rate=16_000, **limits):
    return AudioReader(Runtime(**limits), rate).samples(AudioFile(content, "audio[3]"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_sound_is_named_with_the_reason(name):
    content, said = UNREADABLE[name]
    tracemalloc.start()
    with pytest.raises(InputError, match=r"^audio\[3\]: ") as told:
        read(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert said in str(told.value)
    assert len(str(told.value)) < 300
    assert "0x" not in str(told.value), "an address is of no use to anybody"
    assert "BytesIO" not in str(told.value)
    assert peak < 50e6


@pytest.mark.parametrize("name", READABLE)
def test_unusual_sounds_are_read(name):
    found = read(READABLE[name])
    assert found.dtype == np.float32
    assert len(found) >= 1
    assert np.isfinite(found).all()


@pytest.mark.parametrize("rate", [8000, 48_000])
def test_each_kind_is_mixed_and_resampled(rate):
    for kind, content in KINDS.items():
        samples, own = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
        expected = soxr.resample(samples.mean(1), own, rate)
        found = read(content, rate)
        assert found.shape == expected.shape, kind
        assert np.abs(found - expected).max() < 1e-6, kind
        assert len(found) == pytest.approx(0.9 * rate, rel=0.1)


def test_channels_are_mixed_by_their_mean():
    both = sound(0.1, channels=2)
    assert np.allclose(read(saved(both, subtype="FLOAT"), 48_000), both.mean(1), atol=1e-6)
    opposite = np.concatenate([both[:, :1], -both[:, :1]], 1)
    assert np.allclose(read(saved(opposite, subtype="FLOAT"), 48_000), 0, atol=1e-6)


def test_limits():
    content = saved(sound(1, 8000), 8000)
    with pytest.raises(InputError, match=rf"has {len(content)} bytes; send at most 500, or raise max_audio_bytes"):
        read(content, max_audio_bytes=500)
    with pytest.raises(InputError, match=r"lasts 1\.0 s; send at most 0\.9 s, or raise max_audio_s"):
        read(content, max_audio_s=0.9)
    with pytest.raises(InputError, match=r"has 86400 samples in each of 8 channels; send fewer channels"):
        read(saved(sound(0.9, 96_000, 8), 96_000), max_audio_s=1)
    assert len(read(content, 8000, max_audio_s=1.0, max_audio_bytes=len(content))) == 8000


def test_a_long_sound_takes_no_more_than_its_samples():
    """100 s of 96 kHz in stereo would be 77 MB; at 16 kHz they are 6 MB, twice while they are put together."""
    content = saved(np.zeros((96_000 * 100, 2), np.int16), 96_000, "FLAC")
    before, _ = share_of(os.getpid()).total, tracemalloc.start()
    found = read(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 16_000 * 100
    assert peak < 30e6
    assert share_of(os.getpid()).total - before < 50e6


@pytest.mark.timeout(60)
def test_a_64_megabyte_file_that_is_no_mp3_is_refused_quickly():
    with pytest.raises(InputError, match="not an audio file"):
        read(b"\xff\xfb\x90\x00" + bytes(64 * 1024**2 - 4))
    assert len(read(wav(rate=1000, data=bytes(2000)), 8000)) == 8000


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", ">i2", ">f4"])
@pytest.mark.parametrize("channels", [0, 1, 2, 7])
def test_a_clients_samples_arrive_as_they_are(dtype, channels):
    samples = sound(0.1, 16_000, max(1, channels))
    samples = samples if channels else samples[:, 0]
    is_whole = np.dtype(dtype).kind == "i"
    given = samples * 32767 if is_whole else samples
    (sent,) = encoded([{"audio": {"data": given.astype(dtype), "sample_rate": 16_000}}])["audio"]
    found, rate = soundfile.read(io.BytesIO(sent), dtype="float32", always_2d=True)
    assert rate == 16_000
    assert np.allclose(found, samples.reshape(len(samples), -1), atol=1e-4)
    if not is_whole:
        assert np.array_equal(found, samples.reshape(len(samples), -1))


def test_a_client_sends_files_as_they_are(tmp_path):
    content = KINDS["mp3"]
    (tmp_path / "a.mp3").write_bytes(content)
    ways = [
        content,
        bytearray(content),
        tmp_path / "a.mp3",
        str(tmp_path / "a.mp3"),
        {"data": content, "format": "mp3"},
    ]
    assert encoded([{"audio": way} for way in ways])["audio"].tolist() == [content] * len(ways)
