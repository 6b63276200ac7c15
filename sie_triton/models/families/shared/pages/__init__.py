"""Language models that read pages as images."""

from dataclasses import dataclass
from typing import Any

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.models.families.base import Family, Options, Recognised
from sie_triton.models.families.shared.token_pooling import TOKEN_POOLING

# Height and width of a page for measuring, in pixels. Small: a larger one costs proportionally more, and takes minutes
# on a CPU.
PAGE = (448, 336)


@dataclass(frozen=True)
class PageOptions(Options):
    """Options of page families."""

    muvera_config: dict[str, Any] | None = None  # default of a profile's `runtime.muvera`
    token_dim: int | None = None  # without effect: the checkpoint gives the size
    normalize: bool | None = None  # without effect: vectors always have unit length


class PageFamily(Family):
    inputs = ("text", "image")
    outputs = (ENCODE_OUTPUTS["multivector"],)
    parameters = TOKEN_POOLING
    score_modes = ("maxsim",)
    options = PageOptions

    @staticmethod
    def recognised(name: str, files: PageFiles, plan: PatchPlan) -> Recognised:
        """Return what a model of images of many sizes is recognised as; `name` says what config.json names."""
        reason = f"config.json: {name}, images of at most {plan.max_pixels // plan.factor**2} tokens"
        return Recognised(reason, files.longest, {"multivector": files.dim}, scores=True, weights=(files.directory,))
