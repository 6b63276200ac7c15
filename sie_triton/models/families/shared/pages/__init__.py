"""Language models that read images, in particular of pages."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ, Tensor
from sie_triton.models.families.base import Family, Options, Recognised
from sie_triton.models.families.shared.token_pooling import TOKEN_POOLING

# Height and width of a page for measuring, in pixels. Small: a larger one costs proportionally more, and takes minutes
# on a CPU.
PAGE = (448, 336)


class VisionLanguageFamily(Family):
    """Base of families whose checkpoint is a language model with a vision tower.

    `model_types` are those of the vision language model in config.json, the default first. `usual_longest` is the
    maximum length in tokens if config.json names none.
    """

    inputs: ClassVar[tuple[str, ...]] = ("text", "image")
    features: ClassVar[tuple[Tensor, ...]] = (READ, INPUT_IDS, PIXELS, IMAGE_SIZES)
    model_types: ClassVar[tuple[str, ...]]
    usual_longest: ClassVar[int]

    @classmethod
    def read(cls, directory: Path) -> PageFiles:
        """Read the files; raise LoadError naming the one that cannot be used."""
        return PageFiles.read(directory, cls.model_types, cls.usual_longest)

    def recognises(self, directory: Path) -> bool:
        """Return whether config.json is that of the family."""
        return kind_of(directory)[0] in self.model_types

    def longest(self, directory: Path) -> int:
        return self.read(directory).longest


@dataclass(frozen=True)
class PageOptions(Options):
    """Options of page families."""

    muvera_config: dict[str, Any] | None = None  # default of a profile's `runtime.muvera`
    token_dim: int | None = None  # without effect: the checkpoint gives the size
    normalize: bool | None = None  # without effect: vectors always have unit length


class PageFamily(VisionLanguageFamily):
    """Base of families that make a vector of each token of a page."""

    outputs = (ENCODE_OUTPUTS["multivector"],)
    parameters = TOKEN_POOLING
    score_modes = ("maxsim",)
    options = PageOptions

    def recognise(self, directory: Path) -> Recognised | None:
        if not self.recognises(directory):
            return None
        files = self.read(directory)
        reason = f"config.json: {self.described(files)}"
        return Recognised(reason, files.longest, {"multivector": files.dim}, scores=True, weights=(directory,))

    @abstractmethod
    def described(self, files: PageFiles) -> str:
        """Return the name of the model, and how large its images may be."""
