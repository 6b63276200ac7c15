"""What families that read pages have in common: an image or a text as one small vector for each token."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.checkpoints.pages import PageFiles
from sie_triton.contract import ENCODE_OUTPUTS, Features
from sie_triton.contract.tensors import IMAGE
from sie_triton.families.base import Family, Options
from sie_triton.spec import ModelSpec


@dataclass(frozen=True)
class PageOptions(Options):
    """`muvera_config` fills a profile's empty `runtime.muvera`. `token_dim` is what the checkpoint says, and
    `normalize` changes nothing: vectors of these models have unit length.
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
        """LoadError names the file that cannot be used."""

    def longest(self, directory: Path) -> int:
        return self.read(directory).longest

    def page(self, spec: ModelSpec, directory: Path, size: tuple[int, int]) -> Features:
        """Of one white page of this height and width, as large as the model reads it; for measuring."""
        return self.processor(spec, directory).encode(
            [{IMAGE.name: np.full((*size, 3), 255, np.uint8)}], is_query=False
        )
