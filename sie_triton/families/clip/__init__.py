"""CLIP: images and texts in a common embedding space (Radford et al., 2021).

image → resized, cropped → vision transformer → state of the class token → projection → dense
text → tokens → text transformer → state of the closing token → projection → dense
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sie_triton.checkpoints.towers import TowerFiles, is_before_fast, model_type, model_type_file
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ
from sie_triton.families.base import Adapter, Family, Recognised
from sie_triton.families.shared.towers.options import TowerOptions
from sie_triton.inputs import Processor
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine

# Image preprocessing of OpenAI's training.
USUAL_IMAGES = {
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


class Clip(Family):
    inputs = ("text", "image")
    outputs = (ENCODE_OUTPUTS["dense"],)
    features = (READ, INPUT_IDS, PIXELS, IMAGE_SIZES)
    options = TowerOptions
    reference_adapters = ("clip:CLIPAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if model_type(directory) != "clip":
            return None
        files = read(directory)
        height, width = files.plan.shape
        reason = f"{model_type_file(directory)}: clip, images of {height} × {width} in {files.num_patches} patches"
        dims = {"dense": files.dim}
        # Directories without tokenizer.json are checked when the model is loaded.
        weights = () if is_before_fast(files.directory) else (files.directory,)
        return Recognised(reason, files.longest_text, dims, normalize=True, weights=weights)

    def longest(self, directory: Path) -> int:
        return read(directory).longest_text

    def refusals(self, spec: ModelSpec) -> Iterator[str]:
        options: TowerOptions = self.options_of(spec)
        return options.refusals(spec)

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        from sie_triton.families.shared.towers.processor import TowerProcessor
        from sie_triton.inputs.clip_tokens import open_clip_tokenizer
        from sie_triton.inputs.pixels import resized
        from sie_triton.inputs.tokenizer import truncating

        files = read(directory)
        tokenizer = truncating(open_clip_tokenizer(files.directory), min(spec.max_sequence_length, files.longest_text))
        return TowerProcessor(
            tokenizer, partial(resized, plan=files.plan), lambda _: 1 + files.num_patches, spec.runtime
        )

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.clip.adapter import load

        return load(directory, engine)


def read(directory: Path) -> TowerFiles:
    return TowerFiles.read(directory, USUAL_IMAGES)
