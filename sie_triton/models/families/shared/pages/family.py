"""Base of families that make one small vector for each token of a page or text."""

from dataclasses import dataclass
from typing import Any

from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.models.families.base import Family, Options


@dataclass(frozen=True)
class PageOptions(Options):
    """Options of page families.

    `muvera_config` is the default of a profile's `runtime.muvera`. `token_dim` and `normalize` have no effect: the
    checkpoint gives the size, and vectors always have unit length.
    """

    muvera_config: dict[str, Any] | None = None
    token_dim: int | None = None
    normalize: bool | None = None


class PageFamily(Family):
    inputs = ("text", "image")
    outputs = (ENCODE_OUTPUTS["multivector"],)
    score_modes = ("maxsim",)
    options = PageOptions
