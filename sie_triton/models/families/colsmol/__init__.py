"""ColSmol (ColIdefics3): a page as an image in tiles, one small vector for each token of them, over SmolVLM.

image → tiles and a smaller copy → vision transformer → a state for several patches, within the prompt → Llama
text → text, padding tokens → Llama → projection → unit vectors

The layout is that of colpali-engine, in which these models were trained, after an adapter is merged into its base.
"""

from pathlib import Path

from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.tile_plan import TilePlan
from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Recognised
from sie_triton.models.families.shared.pages import PageFamily

KIND, OF_ENGINE = "idefics3", "ColIdefics3"


class ColSmol(PageFamily):
    features = (READ, INPUT_IDS, PIXELS)
    takes_loras = True
    reference_adapters = ("colsmol:ColSmolAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if kind_of(directory) != (KIND, OF_ENGINE):
            return None
        files = read(directory)
        plan, (_, num_tokens) = TilePlan.read(directory, files.vision), tile_counts(files)
        reason = f"config.json: {OF_ENGINE}, images of at most {plan.most_tiles} tiles of {num_tokens} tokens"
        return Recognised(reason, files.longest, {"multivector": files.dim}, scores=True, weights=(directory,))

    def longest(self, directory: Path) -> int:
        return read(directory).longest


def read(directory: Path) -> PageFiles:
    return PageFiles.read(directory, (KIND,), longest=8192)


def tile_counts(files: PageFiles) -> tuple[int, int]:
    """Return the number of patches and of tokens of a tile; LoadError if patches do not fill it."""
    side, patch = files.vision.integer("image_size", 224, least=1), files.vision.integer("patch_size", 32, least=1)
    merged = files.vlm.integer("scale_factor", 2, least=1)
    if side % (patch * merged):
        message = f"{files.vlm.where}: image_size must be a multiple of patch_size · scale_factor"
        raise LoadError(message, "unsupported")
    return (side // patch) ** 2, (side // patch // merged) ** 2
