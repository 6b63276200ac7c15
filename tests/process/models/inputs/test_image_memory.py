"""Peak memory of decoding an image, measured in a separate process, against the memory charged."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.pictures import ORIENTATION, picture, saved
from tests.support.unreadable import tiled_tiff

SIDE = 1800

# Resized rows, the file, and memory that the allocator keeps.
MARGIN_BYTES = 8_000_000


def files() -> dict[str, Callable[[], bytes]]:
    """Map the name of each file to what makes it, which takes up to a second."""
    coarse = picture(SIDE // 8, SIDE // 8).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    clear = coarse.convert("RGBA")
    clear.putalpha(100)
    turned = Image.Exif()
    turned[ORIENTATION] = 6

    def palette() -> Image.Image:
        return coarse.convert("P", palette=Image.Palette.ADAPTIVE)

    return {
        "jpeg, turned": lambda: saved(coarse, "JPEG", exif=turned),
        "progressive cmyk jpeg, turned": lambda: saved(coarse.convert("CMYK"), "JPEG", progressive=True, exif=turned),
        "grey jpeg": lambda: saved(coarse.convert("L"), "JPEG"),
        "transparent png, turned": lambda: saved(clear, exif=turned),
        "png of 16 bits": lambda: saved(Image.fromarray(np.asarray(coarse.convert("L")).astype(np.uint16) * 200)),
        "webp": lambda: saved(coarse, "WEBP"),
        "transparent webp, turned": lambda: saved(clear, "WEBP", exif=turned.tobytes(), method=0),
        "lossless webp": lambda: saved(clear, "WEBP", lossless=True, method=0, quality=0),
        "animated webp": lambda: saved(clear, "WEBP", save_all=True, append_images=[clear.rotate(90)], method=0),
        "animated gif": lambda: saved(
            palette(), "GIF", transparency=3, save_all=True, append_images=[palette().rotate(90)]
        ),
        "bmp": lambda: saved(coarse, "BMP"),
        "bmp of a palette": lambda: saved(palette(), "BMP"),
        "transparent tiff, turned": lambda: saved(clear, "TIFF", compression="tiff_lzw", tiffinfo={274: 6}),
        "tiff of numbers": lambda: saved(coarse.convert("F"), "TIFF", compression="tiff_lzw"),
        "tiff of one strip": lambda: saved(coarse, "TIFF", compression="tiff_lzw", strip_size=1 << 40),
        "tiff of a large tile": lambda: tiled_tiff(64, 4 * SIDE),
    }


PROGRAM = """
import json, sys
from pathlib import Path
from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin
from sie_triton.models.inputs.decoding import open_image, peak_bytes
from sie_triton.models.inputs.images import ImageFile, ImageReader
from sie_triton.errors import InputError
from sie_triton.contract.spec import Runtime

def memory(field):
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))

reader, found = ImageReader(Runtime(max_image_pixels=1 << 29)), []
for path in sys.argv[1:]:
    content = Path(path).read_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    try:
        with reader.opened(ImageFile(content, "image")) as picture:
            picture.resize((224, 224))
    except InputError as exc:
        assert "decoder error" in str(exc), exc
    with open_image(content, "image", 1 << 29) as image:
        found.append((memory("VmHWM") - before, peak_bytes(image, "image", 1 << 29)))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def peaks(tmp_path_factory) -> dict[str, tuple[int, int]]:
    directory, made = tmp_path_factory.mktemp("images"), files()
    paths = [directory / str(number) for number in range(len(made))]
    for path, make in zip(paths, made.values(), strict=True):
        path.write_bytes(make())
    # Otherwise the allocator keeps the memory of one image for the next.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", PROGRAM, *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), env=environment)
    assert not run.returncode, run.stderr
    return dict(zip(made, json.loads(run.stdout), strict=True))


@pytest.mark.parametrize("name", files())
def test_an_image_is_charged_at_least_its_peak(peaks, name):
    peak, charged = peaks[name]
    assert peak <= charged + MARGIN_BYTES
    assert peak >= charged / 3 or "tile" in name, "the charge is far from the truth"
