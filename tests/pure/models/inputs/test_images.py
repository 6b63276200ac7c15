"""Image files are decoded, or refused, in bounded time and memory."""

import struct
import threading
import time
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sie_triton.contract.spec import Runtime
from sie_triton.errors import Cancelled, InputError
from sie_triton.models.inputs.decoding import _ignore_warnings, stopping
from sie_triton.models.inputs.images import ImageFile, ImageReader
from tests.support.controller import wait_for
from tests.support.many_parts import of_many_parts, of_unread_parts
from tests.support.pictures import picture, saved
from tests.support.unreadable import readable, unreadable

UNREADABLE, READABLE = unreadable(), readable()
MANY, UNREAD = of_many_parts(), of_unread_parts()


def read(content, **limits):
    with ImageReader(Runtime(**limits)).opened(ImageFile(content, "image[3]")) as image:
        return np.asarray(image)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_image_is_named_with_the_reason(name):
    content, said = UNREADABLE[name]
    tracemalloc.start()
    with pytest.raises(InputError, match=r"^image\[3\]: ") as told:
        read(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert said in str(told.value)
    assert len(str(told.value)) < 300
    assert "0x" not in str(told.value), "an address is of no use to anybody"
    assert peak < 50e6


@pytest.mark.parametrize("name", READABLE)
def test_unusual_images_are_read(name):
    assert read(READABLE[name]).ndim == 3


@pytest.mark.parametrize("name", MANY)
def test_an_image_of_many_parts_is_refused(name):
    """Pillow would walk them in Python, 20 MB in up to 30 s."""
    with pytest.raises(InputError) as told:
        read(MANY[name])
    assert told.value.field == "image[3]"


@pytest.mark.parametrize("name", UNREAD)
def test_parts_that_are_not_read_cost_no_memory(name):
    tracemalloc.start()
    assert read(UNREAD[name]).ndim == 3
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000 + 3 * len(UNREAD[name])


def test_decoding_ends_once_no_client_waits():
    asked = []
    with pytest.raises(Cancelled), stopping(lambda: asked.append(1) or len(asked) > 2):
        read(saved(picture(900, 900, seed=1), "JPEG", quality=100))
    for kind in ("JPEG", "WEBP"):
        content = saved(picture(900, 900, seed=1), kind)
        with pytest.raises(Cancelled), stopping(lambda: True):
            read(content)
        assert read(content).ndim == 3


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_image_bytes": 500}, r"has \d+ bytes; send at most 500, or raise max_image_bytes"),
        ({"max_image_pixels": 5916}, "has 97 × 61 pixels; send at most 5916, or raise max_image_pixels"),
    ],
)
def test_limits(limits, said):
    with pytest.raises(InputError, match=said):
        read(saved(picture()), **limits)
    assert read(saved(picture()), max_image_pixels=97 * 61).shape == (61, 97, 3)


@pytest.mark.timeout(60)  # an image that never fits would be waited for
def test_the_memory_of_concurrent_decoding_is_bounded():
    """Memory suffices for two images: the third waits. An image over the limit is refused."""
    reader, content = ImageReader(Runtime(max_decoded_bytes=2 * 9 * 97 * 61)), saved(picture())
    inside, most, lock, go = 0, [0], threading.Lock(), threading.Event()

    def hold(_):
        nonlocal inside
        with reader.opened(ImageFile(content, "image")):
            with lock:
                inside += 1
                most[0] = max(most[0], inside)
            go.wait(60)
            with lock:
                inside -= 1

    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(hold, i) for i in range(5)]
        wait_for(lambda: most[0] == 2)
        time.sleep(0.3)  # time for a third, which must not start
        go.set()
        for each in running:
            each.result(60)
    assert most[0] == 2
    with pytest.raises(InputError, match=r"takes 53253 bytes of memory to decode, and .* raise max_decoded_bytes"):
        read(content, max_decoded_bytes=53_252)


def test_damaged_metadata_leaves_no_warning_behind():
    """Python keeps the text of each warning that it has printed, and a client can have any number of texts."""
    entries = struct.pack("<HHHII", 2, 0x010F, 2, 100, 9999) + struct.pack("<HHII", 0x0112, 3, 1, 6)
    content = saved(picture(), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0" + entries + bytes(4))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        _ignore_warnings.cache_clear()
        read(content)
    assert given == []
