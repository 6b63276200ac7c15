"""Picture files of every kind that clients send, from a fixed seed."""

import io
from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageOps

ORIENTATION = 0x0112


def picture(width: int = 97, height: int = 61, seed: int = 0) -> Image.Image:
    """Return a picture whose colours change from place to place, so that its parts differ, with some noise."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    turns = rng.uniform(1, 9, (3, 2))
    waves = [np.sin(a * x * 6 + b * y * 6 + seed) * 100 + 128 for a, b in turns]
    noise = rng.normal(0, 12, (height, width, 3))
    return Image.fromarray(np.clip(np.stack(waves, -1) + noise, 0, 255).astype(np.uint8))


def upright(file: bytes) -> Image.Image:
    """Return the picture in a file as it is shown: turned by its EXIF orientation, in RGB."""
    return ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB")


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pictures(sizes: Sequence[tuple[int, int]] = ((97, 61), (40, 90), (33, 33), (300, 31))) -> list[bytes]:
    return [saved(picture(*size, seed=i), "JPEG" if i % 2 else "PNG") for i, size in enumerate(sizes)]


@cache
def of_all_kinds() -> dict[str, bytes]:
    image = picture()
    alpha = image.convert("RGBA")
    alpha.putalpha(picture(seed=1).convert("L"))
    turned = Image.Exif()
    turned[ORIENTATION] = 6
    frames = [picture(seed=seed).convert("P", palette=Image.Palette.ADAPTIVE) for seed in (0, 1, 2)]
    sixteen = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 200)
    return {
        "png": saved(image),
        "jpeg": saved(image, "JPEG", quality=95),
        "progressive": saved(image, "JPEG", progressive=True),
        "webp": saved(image, "WEBP", quality=90),
        "bmp": saved(image, "BMP"),
        "tiff": saved(image, "TIFF"),
        "grey": saved(image.convert("L")),
        "black and white": saved(image.convert("1")),
        "alpha": saved(alpha),
        "grey alpha": saved(image.convert("LA")),
        "palette": saved(image.convert("P", palette=Image.Palette.ADAPTIVE)),
        "transparent palette": saved(frames[0], transparency=3),
        "cmyk": saved(image.convert("CMYK"), "JPEG"),
        "cmyk tiff": saved(image.convert("CMYK"), "TIFF"),
        "turned": saved(image, "JPEG", exif=turned),
        "turned png": saved(image, exif=turned),
        "animated gif": saved(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "animated webp": saved(image, "WEBP", save_all=True, append_images=[picture(seed=4)]),
        "sixteen bits": saved(sixteen),
    }
