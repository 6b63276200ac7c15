"""CLIP: images and texts in a common embedding space (Radford et al., 2021).

image → resized, cropped → vision transformer → state of the class token → projection → dense
text → tokens → text transformer → state of the closing token → projection → dense
"""

from functools import partial
from pathlib import Path

from sie_triton.checkpoints.files import has_file
from sie_triton.checkpoints.open_clip import is_open_clip
from sie_triton.checkpoints.special_tokens import TOKENIZER
from sie_triton.checkpoints.towers import TowerFiles, model_type, model_type_file
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.base import Recognised
from sie_triton.models.families.shared.towers import TowerFamily
from sie_triton.models.families.shared.towers.processor import TowerProcessor
from sie_triton.models.inputs.pixels import resized
from sie_triton.models.inputs.tokenizer import open_tokenizer, truncating


class Clip(TowerFamily):
    reference_adapters = ("clip:CLIPAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if model_type(directory) != "clip":
            return None
        files = TowerFiles.read(directory)
        height, width = files.plan.shape
        reason = f"{model_type_file(directory)}: clip, images of {height} × {width} in {files.num_patches} patches"
        dims = {"dense": files.dim}
        return Recognised(reason, files.longest_text, dims, normalize=True, weights=(files.directory,))

    def keeps_tokenizer(self, directory: Path) -> bool:
        return is_open_clip(directory) and has_file(directory / TOKENIZER)

    def longest(self, directory: Path) -> int:
        return TowerFiles.read(directory).longest_text


def load_processor(spec: ModelSpec, directory: Path) -> TowerProcessor:
    files = TowerFiles.read(directory)
    tokenizer = truncating(open_tokenizer(files.directory), min(spec.max_sequence_length, files.longest_text))
    return TowerProcessor(tokenizer, partial(resized, plan=files.plan), lambda _: 1 + files.num_patches, spec.runtime)
