"""SigLIP and SigLIP 2: images and texts in a common embedding space (Zhai et al., 2023; Tschannen et al., 2025).

image → resized → vision transformer → attention pooling → dense
text → tokens, padded to the model's length → text transformer → state of the last place → head → dense
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.checkpoints.towers import model_type, model_type_file
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ
from sie_triton.families.base import Adapter, Family, Recognised
from sie_triton.families.shared.towers.options import TowerOptions
from sie_triton.families.siglip.files import ANY_SHAPE, ONE_SIZE, SiglipFiles
from sie_triton.inputs import Processor
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine
    from sie_triton.families.shared.towers.processor import TowerProcessor


class Siglip(Family):
    inputs = ("text", "image")
    outputs = (ENCODE_OUTPUTS["dense"],)
    features = (READ, INPUT_IDS, PIXELS, IMAGE_SIZES)
    options = TowerOptions
    reference_adapters = ("siglip:SiglipAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if (kind := model_type(directory)) not in (ONE_SIZE, ANY_SHAPE):
            return None
        files = SiglipFiles.read(directory)
        if isinstance(files.plan, ImagePlan):
            height, width = files.plan.shape
            images = f"images of {height} × {width} in {files.num_patches} patches"
        else:
            images = f"images of any shape in at most {files.num_patches} patches"
        reason, dims = f"{model_type_file(directory)}: {kind}, {images}", {"dense": files.dim}
        return Recognised(reason, files.texts.length, dims, normalize=True, weights=(files.directory,))

    def longest(self, directory: Path) -> int:
        return SiglipFiles.read(directory).texts.length

    def refusals(self, spec: ModelSpec) -> Iterator[str]:
        options: TowerOptions = self.options_of(spec)
        return options.refusals(spec)

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        return processor(spec, SiglipFiles.read(directory))

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.siglip.adapter import load

        return load(directory, engine)


def processor(spec: ModelSpec, files: SiglipFiles) -> "TowerProcessor":
    """Return the processor. Texts are truncated to the model file's limit, then padded to the checkpoint's length."""
    from sie_triton.families.shared.towers.processor import TowerProcessor
    from sie_triton.inputs.cleaning import cleaning
    from sie_triton.inputs.pixels import resized, resized_for_patches
    from sie_triton.inputs.tokenizer import open_tokenizer, padding, truncating

    texts, plan = files.texts, files.plan
    tokenizer = truncating(open_tokenizer(files.directory), min(spec.max_sequence_length, texts.length))
    padding(tokenizer, texts.length, texts.token, texts.on_left)
    cleaning(tokenizer, texts.cleaning)
    if isinstance(plan, ImagePlan):
        return TowerProcessor(tokenizer, partial(resized, plan=plan), lambda _: files.num_patches, spec.runtime)
    resize = partial(resized_for_patches, plan=plan)
    return TowerProcessor(tokenizer, resize, lambda pixels: plan.num_patches(*pixels.shape[:2]), spec.runtime)
