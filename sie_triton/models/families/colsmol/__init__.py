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
from sie_triton.models.families.shared.pages import PageFamily


class ColSmol(PageFamily):
    features = (READ, INPUT_IDS, PIXELS)
    model_types = ("idefics3",)
    usual_longest = 8192
    takes_loras = True
    reference_adapters = ("colsmol:ColSmolAdapter",)

    def recognises(self, directory: Path) -> bool:
        return kind_of(directory) == ("idefics3", "ColIdefics3")  # the class is colpali-engine's

    def described(self, files: PageFiles) -> str:
        plan, (_, num_tokens) = TilePlan.read(files.directory, files.vision), tile_counts(files)
        return f"ColIdefics3, images of at most {plan.most_tiles} tiles of {num_tokens} tokens"


def tile_counts(files: PageFiles) -> tuple[int, int]:
    """Return the number of patches and of tokens of a tile; LoadError if patches do not fill it."""
    side, patch = files.vision.integer("image_size", 224, least=1), files.vision.integer("patch_size", 32, least=1)
    merged = files.vlm.integer("scale_factor", 2, least=1)
    if side % (patch * merged):
        message = f"{files.vlm.where}: image_size must be a multiple of patch_size · scale_factor"
        raise LoadError(message, "unsupported")
    return (side // patch) ** 2, (side // patch // merged) ** 2
