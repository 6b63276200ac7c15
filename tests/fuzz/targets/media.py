"""Image, sound and document files of clients."""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from sie_triton.contract.spec import Runtime
from sie_triton.errors import InputError
from sie_triton.models.inputs.audio import AudioFile, AudioReader
from sie_triton.models.inputs.documents import FORMATS, DocumentFile, check_document
from sie_triton.models.inputs.images import ImageFile, ImageReader
from sie_triton.models.inputs.limits import InputLimits
from tests.fuzz.checksums import repaired_ogg, repaired_png
from tests.fuzz.containers import restructured
from tests.fuzz.damage import damaged
from tests.fuzz.steps import bounded_work
from tests.fuzz.target import Target
from tests.fuzz.targets.stages import check_error
from tests.support import many_parts, pictures, sounds, unhearable, unreadable

# Limits that make a case quick.
LIMITS = Runtime(max_image_pixels=250_000, max_audio_s=3.0)

# Files beyond this size, in bytes, would take long to damage.
MAX_BYTES = 60_000

# Maximum size of an Ogg file whose checksums are corrected, in bytes.
MAX_REPAIRED = 1 << 18

# Rates at which sounds are read.
RATES = (8000, 16_000, 48_000)


@contextmanager
def images(directory: Path) -> Iterator[Target]:
    files = [*pictures.of_all_kinds().values(), *unreadable.readable().values()] * 3
    files += [file for file, _ in unreadable.unreadable().values()]
    small, reader = [file for file in files if len(file) < MAX_BYTES], ImageReader(LIMITS)
    cases = st.one_of(damaged(small, repaired_png), restructured([*small, *many_parts.of_each()], repaired_png))
    yield Target(cases, lambda file: seen(reader, file), (InputError,))


def seen(reader: ImageReader, file: bytes) -> None:
    """Read an image, and all of its pixels."""
    try:
        with bounded_work(3_000_000), reader.opened(ImageFile(file, "image[0]")) as picture:
            assert picture.mode == "RGB"
            assert 0 < picture.width * picture.height <= LIMITS.max_image_pixels
            picture.resize((8, 8)).tobytes()
    except InputError as exc:
        check_error(exc, "image[0]: ")
        raise


@contextmanager
def audio(directory: Path) -> Iterator[Target]:
    files = [*unhearable.readable().values(), *sounds.sounds((0.05, 0.1))]
    for kind, subtype in (
        ("WAV", "PCM_24"),
        ("WAV", "IMA_ADPCM"),
        ("RF64", "PCM_16"),
        ("FLAC", "PCM_16"),
        ("OGG", "OPUS"),
    ):
        files.append(sounds.saved(sounds.sound(0.05, 48_000, 2), 48_000, kind, subtype))
    files += [
        sounds.saved(sounds.sound(0.1, 44_100), 44_100, *kind)
        for kind in (("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS"))
    ]
    files = 2 * files + [file for file, _ in unhearable.unreadable().values()]
    readers = [AudioReader(LIMITS, rate) for rate in RATES]
    small = [file for file in files if len(file) < MAX_BYTES]
    changed = st.one_of(damaged(small, repaired_ogg), restructured(small, repaired_ogg, MAX_REPAIRED))
    cases = st.tuples(changed, st.integers(0, len(readers) - 1))
    yield Target(cases, lambda case: heard(readers[case[1]], case[0]), (InputError,))


def heard(reader: AudioReader, file: bytes) -> None:
    """Read a sound."""
    try:
        with bounded_work(1_000_000):
            samples = reader.samples(AudioFile(file, "audio[0]"))
    except InputError as exc:
        check_error(exc, "audio[0]: ")
        raise
    assert samples.dtype == np.float32
    assert 0 < len(samples) <= RATES[-1] * (LIMITS.max_audio_s + 1)
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() <= 10 * InputLimits().max_magnitude


@contextmanager
def documents(directory: Path) -> Iterator[Target]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("[Content_Types].xml", "<a/>")
        file.writestr("word/document.xml", "<w>" * 2000)
        file.writestr("xl/größe.xml", "b")
    files = [
        archive.getvalue(),
        b"%PDF-1.7\n",
        b"<!doctype html><p>x</p>",
        "# Größe\n".encode(),
        b"PK\x05\x06" + bytes(18),
    ]

    def run(file: bytes) -> None:
        with bounded_work(500_000):
            assert check_document(DocumentFile(file, "document[0]"), LIMITS.max_document_bytes) in FORMATS

    yield Target(st.one_of(damaged(files), restructured(files)), run, (InputError,))
