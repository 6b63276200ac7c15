"""Sizes of resized images, from the settings of transformers' image processors. No torch."""

from dataclasses import dataclass

from sie_triton.checkpoints.files import Fields, shortened
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.errors import LoadError

# The keys that a size may have together.
EXACT, SHORTEST, BOTH_EDGES = ("height", "width"), ("shortest_edge",), ("shortest_edge", "longest_edge")
WITHIN = ("max_height", "max_width")
KEPT = ()
FORMS = (EXACT, SHORTEST, BOTH_EDGES, WITHIN, ("longest_edge",), ("min_pixels", "max_pixels"))


@dataclass(frozen=True, slots=True)
class Resizing:
    """Height and width of a resized image: `values` of the keys `form`; KEPT: those of the image."""

    form: tuple[str, ...]
    values: tuple[int, ...]

    @classmethod
    def read(
        cls, fields: Fields, supported: tuple[tuple[str, ...], ...] = (EXACT, SHORTEST, BOTH_EDGES, WITHIN)
    ) -> "Resizing":
        """Read `size`; raise LoadError unless it has one of the `supported` forms."""
        size = size_fields(fields, "size")
        form = form_of(size, supported)
        return cls(form, tuple(size.integer(key, least=1, most=LIMITS.max_image_side) for key in form))

    @property
    def exact(self) -> tuple[int, int] | None:
        """Height and width, if all images get the same."""
        return (self.values[0], self.values[1]) if self.form == EXACT else None

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing, as transformers computes them.

        >>> Resizing(SHORTEST, (224,)).size(480, 641), Resizing(BOTH_EDGES, (96, 128)).size(300, 600)
        ((224, 299), (64, 128))
        >>> Resizing(WITHIN, (64, 64)).size(20, 30), Resizing(KEPT, ()).size(20, 30)
        ((42, 64), (20, 30))
        """
        if self.form == KEPT:
            return height, width
        if self.form == SHORTEST:
            return with_shortest_edge(height, width, *self.values)
        if self.form == BOTH_EDGES:
            return within_edges(height, width, *self.values)
        if self.form == WITHIN:
            scale = min(self.values[0] / height, self.values[1] / width)
            return max(1, int(height * scale)), max(1, int(width * scale))
        return self.values[0], self.values[1]


def size_fields(fields: Fields, key: str, *, to_square: bool | None = None) -> Fields:
    """Return a size as an object.

    A list is height and width. A number is both or, without `to_square`, the shortest edge; the default of `to_square`
    is the setting `default_to_square`.
    """
    value = fields.values.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        is_square = fields.flag("default_to_square", False) if to_square is None else to_square
        value = dict.fromkeys(EXACT if is_square else SHORTEST, value)
    if isinstance(value, list) and len(value) == 2:
        value = dict(zip(EXACT, value, strict=True))
    return Fields.of(f"{fields.where}: {key}", value)


def form_of(size: Fields, supported: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Return the keys of a size; raise LoadError unless they are one of the `supported` forms."""
    for form in supported:
        if set(form) == set(size.values):
            return form
    allowed = " or ".join(" and ".join(form) for form in supported)
    message = f"{size.where}: must have {allowed} (given {shortened(dict(size.values))})"
    is_known = any(set(form) == set(size.values) for form in FORMS)
    raise LoadError(message, "unsupported" if is_known else "corrupt")


def with_shortest_edge(height: int, width: int, edge: int) -> tuple[int, int]:
    """Return the size, in the same ratio, whose shorter edge is `edge`.

    >>> with_shortest_edge(480, 641, 224), with_shortest_edge(300, 200, 100)
    ((224, 299), (150, 100))
    """
    longest = int(edge * max(height, width) / min(height, width))
    return (longest, edge) if width <= height else (edge, longest)


def within_edges(height: int, width: int, shortest: int, longest: int) -> tuple[int, int]:
    """Return the size whose shorter edge is `shortest`, or whose longer edge is `longest` if that comes first."""
    low, high = min(height, width), max(height, width)
    edge = float(shortest)
    if high / low * edge > longest:
        edge = longest * low / high
    if low == round(edge):
        return height, width
    made = max(1, round(edge)), int(edge * high / low)
    return made if height <= width else made[::-1]
