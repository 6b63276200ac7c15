"""Images, and the labels to look for in each. No torch."""

from abc import abstractmethod
from functools import lru_cache
from typing import Generic, TypeVar

from sie_triton.contract import Label, Part
from sie_triton.contract.spec import Runtime
from sie_triton.models.families.shared.images import ImageProcessor
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.prompt import Prompted
from sie_triton.models.inputs.words import KEPT_PROMPTS

P = TypeVar("P")


class LabelledImages(ImageProcessor, Generic[P]):
    """Processor of images with labels; `encode` gets a prompt and a PreparedImage for each item."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._kept = lru_cache(KEPT_PROMPTS)(self.prompt)

    @abstractmethod
    def prompt(self, labels: tuple[Label, ...], template: str) -> P:
        """Return the labels in the form that the model reads; raise InputError naming a label."""

    def template(self, part: Part) -> str:
        """Return the template into which labels are put in place of {}; raise InputError if the request's is wrong."""
        return "{}"

    def frame(self, part: Part) -> Frame:
        super().frame(part)
        labels, template = tuple(part.labels), self.template(part)
        return Prompted(lambda: self._kept(labels, template), 0)
