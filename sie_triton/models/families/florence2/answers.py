"""Florence-2's output → texts, boxes and polygons in pixels, read like Florence2Processor of transformers.

Places are written as `<loc_0>` … `<loc_999>`, in thousandths of the image's sides.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sie_triton.models.families.florence2.tasks import ReadingTask

BINS = 1000

# Tokens at the start and end of an answer.
BOUNDS = ("<s>", "</s>", "<pad>")

LOCATION = r"<loc_(\d+)>"
QUAD = re.compile("(.+?)" + LOCATION * 8)
LAST_OF_EIGHT = re.compile(r"(?:<loc_\d+>){8,}")
PHRASE = re.compile(r"([^<]+(?:<loc_\d+>){4,})")
UNNAMED = re.compile(r"(?:<loc_\d+>){4,}")
NAME = re.compile(r"^\s*(.*?)(?=<od>|</od>|<box>|</box>|<bbox>|</bbox>|<loc_)")
BOX = re.compile(LOCATION * 4)

PARTS = r"(?:<loc_\d+>|<sep>|<poly>|</poly>){4,}"
OUTLINED, OUTLINE = re.compile(f"([^<]+{PARTS})"), re.compile(PARTS)
NAME_OF_OUTLINE = re.compile(r"^\s*(.*?)(?=<od>|</od>|<box>|</box>|<bbox>|</bbox>|<loc_|<poly>)")
OUTLINES = re.compile(r"<poly>(.*?)</poly>")
POLYGON = re.compile(r"((?:<loc_\d+>)+)(?:<sep>|$)")

Size = tuple[int, int]  # width and height
Numbers = list[int]


@dataclass(frozen=True, slots=True)
class Answers:
    """Parser of answers. Drops `banned` phrases, and words on less than `least_area`, a share of the image."""

    banned: frozenset[str] = frozenset()
    least_area: float = 0.0

    def read(self, task: ReadingTask, text: str, size: Size) -> Any:
        """Return a text, or lists of places and of labels by name."""
        if task.kind == "text":
            return text.replace("<s>", "").replace("</s>", "").strip()
        for bound in BOUNDS:
            text = text.replace(bound, "")
        if task.kind == "words":
            return self._words(text, size)
        if task.kind == "phrases":
            return _listed("bboxes", self._phrases(text, size))
        if task.kind in ("boxes", "unnamed boxes"):
            return _listed("bboxes", _boxes(text, size, is_named=task.kind == "boxes"))
        if task.kind == "polygons":
            return _listed("polygons", _polygons(text, size, is_named=False))
        is_outlined = "<poly>" in text
        boxes = [] if is_outlined else _boxes(text, size, is_named=True)
        polygons = _polygons(text, size, is_named=True) if is_outlined else []
        return {
            **_listed("bboxes", boxes, "bboxes_labels"),
            **_listed("polygons", polygons, "polygons_labels"),
        }

    def _words(self, text: str, size: Size) -> dict[str, Any]:
        """Find words and their corners.

        Nothing after the last corner can match, and searching it would take quadratic time.
        """
        end = max((match.end() for match in LAST_OF_EIGHT.finditer(text)), default=0)
        found = [(_pixels(places, size), words.strip()) for words, *places in QUAD.findall(text[:end])]
        least = size[0] * size[1] * self.least_area
        return _listed("quad_boxes", [(quad, words) for quad, words in found if least <= 0 or _area(quad) >= least])

    def _phrases(self, text: str, size: Size) -> Iterator[tuple[Numbers, str]]:
        for phrase, name in _named(PHRASE.findall(text), NAME):
            if name not in self.banned:
                yield from ((box, _ascii(name)) for box in _boxes_in(phrase, size))


def _listed(places: str, found: Any, labels: str = "labels") -> dict[str, Any]:
    pairs = list(found)
    return {places: [place for place, _ in pairs], labels: [label for _, label in pairs]}


def _named(phrases: Sequence[str], name: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    for phrase in phrases:
        bare = phrase.replace("<ground>", "", 1).replace("<obj>", "", 1)
        if match := name.search(bare):
            yield bare, match.group().strip()


def _boxes(text: str, size: Size, *, is_named: bool) -> Iterator[tuple[Numbers, str]]:
    for phrase, name in _named((PHRASE if is_named else UNNAMED).findall(text), NAME):
        yield from ((box, _ascii(name)) for box in _boxes_in(phrase, size))


def _boxes_in(phrase: str, size: Size) -> list[Numbers]:
    return [_pixels(match.groups(), size) for match in BOX.finditer(phrase)]


def _polygons(text: str, size: Size, *, is_named: bool) -> Iterator[tuple[list[Numbers], str]]:
    """Yield the polygons of each object together."""
    for phrase in (OUTLINED if is_named else OUTLINE).findall(text):
        name = NAME_OF_OUTLINE.search(re.sub(r"^<loc_\d+>", "", phrase, count=1))
        if name is None:
            continue
        parts = OUTLINES.findall(phrase) if "<poly>" in phrase and "</poly>" in phrase else [phrase]
        for part in parts:
            written = [re.findall(LOCATION, match.group(1)) for match in POLYGON.finditer(part)]
            polygons = [_pixels(places[: len(places) // 2 * 2], size) for places in written]
            if polygons:
                yield polygons, name.group().strip()


def _pixels(places: Sequence[str], size: Size) -> Numbers:
    """Return x and y in turns: the center of each bin in whole pixels, truncated. In float32, as in transformers."""
    bins = np.array([int(place[:6]) for place in places], np.float32)
    steps = np.array([side / BINS for side in size], np.float32)
    found: Numbers = ((bins.reshape(-1, 2) + np.float32(0.5)) * steps).astype(np.int32).reshape(-1).tolist()
    return found


def _area(quad: Numbers) -> float:
    """Return the area of the path through the corners, not closed, as transformers computes it."""
    x, y = quad[0::2], quad[1::2]
    return 0.5 * abs(sum(x[i] * y[i + 1] - x[i + 1] * y[i] for i in range(3)))


def _ascii(name: str) -> str:
    return name.encode("ascii", "ignore").decode("ascii")
