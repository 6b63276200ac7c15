"""Draw the objects found in an image into a copy of it."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from sie_triton.client.types import Object
from sie_triton.errors import InputError

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")

# Line width and letter height, as fractions of the shorter side of the image.
LINE, LETTERS = 1 / 300, 1 / 40
SMALLEST_LETTERS = 10  # pixels


def save(image: Path, objects: Sequence[Object], path: Path) -> None:
    """Write the upright image to `path`, with a box, label and score for each object and one colour per label.

    InputError if the image cannot be read or `path` cannot be written.
    """
    try:
        with Image.open(image) as file:
            picture = ImageOps.exif_transpose(file).convert("RGB")
        drawn(picture, objects).save(path)
    except (OSError, ValueError) as exc:
        raise InputError(f"{image}: cannot be drawn into {path} ({exc})") from exc


def drawn(picture: Image.Image, objects: Sequence[Object]) -> Image.Image:
    """Draw into `picture` itself and return it."""
    shorter = min(picture.size)
    width = max(1, round(shorter * LINE))
    font = ImageFont.load_default(max(SMALLEST_LETTERS, shorter * LETTERS))
    labels = list(dict.fromkeys(each["label"] for each in objects))
    draw = ImageDraw.Draw(picture)
    # The most certain objects last, on top of the others.
    for each in sorted(objects, key=lambda each: each["score"]):
        colour = COLOURS[labels.index(each["label"]) % len(COLOURS)]
        left, top, right, bottom = each["bbox"]
        draw.rectangle((left, top, max(left, right), max(top, bottom)), outline=colour, width=width)
        name = f"{each['label']} {each['score']:.2f}"
        place = max(0, left + width), max(0, top + width)
        draw.rectangle(draw.textbbox(place, name, font), fill=colour)
        draw.text(place, name, "white", font)
    return picture
