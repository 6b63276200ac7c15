"""Base of families that make one small vector for each token of a page or text."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.contract import ENCODE_OUTPUTS, Features
from sie_triton.contract.tensors import IMAGE
from sie_triton.families.base import Family, Options
from sie_triton.spec import ModelSpec


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

    @abstractmethod
    def read(self, directory: Path) -> PageFiles:
        """Read the files; raise LoadError naming the one that cannot be used."""

    def longest(self, directory: Path) -> int:
        return self.read(directory).longest

    def page(self, spec: ModelSpec, directory: Path, size: tuple[int, int]) -> Features:
        """Return the features of one white page of this height and width, after resizing; for measuring."""
        return self.processor(spec, directory).encode(
            [{IMAGE.name: np.full((*size, 3), 255, np.uint8)}], is_query=False
        )
