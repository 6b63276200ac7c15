"""ColSmol (ColIdefics3): a page as an image in tiles, one small vector for each token of them, over SmolVLM.

image → tiles and a smaller copy → vision transformer → a state for several patches, within the prompt → Llama
text → text, padding tokens → Llama → projection → unit vectors

The layout is that of colpali-engine, in which these models were trained, after an adapter is merged into its base.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.tile_plan import TilePlan
from sie_triton.contract import Features
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import IMAGE, INPUT_IDS, PIXELS, READ
from sie_triton.errors import LoadError
from sie_triton.models.families.shared.pages import PageFamily
from sie_triton.models.families.shared.pages.processor import (
    AUGMENTATION,
    PageForm,
    PageImages,
    PageProcessor,
    tokens_of,
    whole_tokenizer,
)
from sie_triton.models.inputs.tiles import Tiles, tiled


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


IMAGE_TOKEN, END = "<image>", "<end_of_utterance>"
BEFORE_IMAGE, AFTER_IMAGE = "<|im_start|>User:", f"Describe the image.{END}\nAssistant:"
AROUND_TILE, COPY = "<fake_token_around_image>", "<global-img>"

# Rows of tiles of a prepared image; 0: it has one tile.
ROWS = "rows"


class TileProcessor(PageProcessor):
    """Processor of texts, and of images as tiles. `per_tile`: tokens of a tile."""

    per_tile: int

    def prepare(self, element: Any) -> Any:
        prepared = super().prepare(element)
        tiles = prepared.get(IMAGE.name)
        return {IMAGE.name: tiles.pixels, ROWS: tiles.rows} if isinstance(tiles, Tiles) else prepared

    def page(self, height: int, width: int) -> Features:
        """Return the features of one white page of two tiles of this size, and their copy."""
        return self.encode([{IMAGE.name: np.full((3, height, width, 3), 255, np.uint8), ROWS: 2}])

    def _image_tokens(self, item: Any) -> Sequence[int]:
        return tokens_of(self._tokenizer, image_text(len(item[IMAGE.name]), item[ROWS], IMAGE_TOKEN * self.per_tile))


def image_text(num_tiles: int, num_rows: int, of_tile: str) -> str:
    """Return the prompt with all tiles of an image, row by row, and its copy, as Idefics3 writes them.

    >>> image_text(3, 1, ".").removeprefix(BEFORE_IMAGE).removesuffix(AFTER_IMAGE).replace(AROUND_TILE, "|")
    '|<row_1_col_1>.|<row_1_col_2>.\\n\\n|<global-img>.|'
    """
    num_columns = (num_tiles - 1) // num_rows if num_rows else 0
    tiles = "".join(
        "".join(f"{AROUND_TILE}<row_{row + 1}_col_{column + 1}>{of_tile}" for column in range(num_columns)) + "\n"
        for row in range(num_rows)
    )
    behind = "\n" if num_rows else ""
    return f"{BEFORE_IMAGE}{tiles}{behind}{AROUND_TILE}{COPY}{of_tile}{AROUND_TILE}{AFTER_IMAGE}"


def load_processor(spec: ModelSpec, directory: Path) -> TileProcessor:
    files = ColSmol.read(directory)
    plan, tokenizer = TilePlan.read(directory, files.vision), whole_tokenizer(directory)
    num_patches, num_tokens = tile_counts(files)
    if tokens_of(tokenizer, IMAGE_TOKEN) != [files.image_token]:
        message = f"{directory}: {IMAGE_TOKEN} must be the token {files.image_token}, which stands for a part of a tile"
        raise LoadError(message, "unsupported")
    form = PageForm("", END * AUGMENTATION, (), (), files.image_token)
    images = PageImages(partial(tiled, plan=plan), lambda num_tiles, _: (num_tiles * num_patches, 0))
    processor = TileProcessor(tokenizer, form, images, min(spec.max_sequence_length, files.longest), spec.runtime)
    processor.per_tile = num_tokens
    return processor
