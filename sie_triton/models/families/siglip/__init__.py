"""SigLIP and SigLIP 2: images and texts in a common embedding space (Zhai et al., 2023; Tschannen et al., 2025).

image → resized → vision transformer → attention pooling → dense
text → tokens, padded to the model's length → text transformer → state of the last place → head → dense
"""

from collections.abc import Iterator
from pathlib import Path

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.checkpoints.open_clip import is_open_clip
from sie_triton.checkpoints.towers import model_type, model_type_file
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.shared.towers.options import TowerOptions
from sie_triton.models.families.siglip.files import ANY_SHAPE, ONE_SIZE, SiglipFiles


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

    def keeps_tokenizer(self, directory: Path) -> bool:
        # transformers has no fast form of the first SigLIP's tokenizer: the processor cleans texts in its place.
        return SiglipFiles.read(directory).texts.cleaning == "siglip" or is_open_clip(directory)

    def longest(self, directory: Path) -> int:
        return SiglipFiles.read(directory).texts.length

    def refusals(self, spec: ModelSpec) -> Iterator[str]:
        return TowerOptions.of(spec).refusals(spec)
