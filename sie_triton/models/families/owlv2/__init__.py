"""OWLv2 and OWL-ViT: objects of any kind that a label names (Minderer et al., 2022 and 2023).

image → square, resized → vision transformer → for each patch: a box, a class vector, its shift and scale
label → "a photo of …" → text transformer → state of the closing token → projection, cached
class vector · label → the best label of each box
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.image_processor import ImagePlan, image_fields, resample, scaling
from sie_triton.checkpoints.resizing import EXACT, Resizing
from sie_triton.checkpoints.towers import check_shape, check_tower, model_type
from sie_triton.contract import Features, Label, Parameter, Part, Ragged
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.contract.tensors import LABEL_THRESHOLDS, ORIGINAL_SIZES, PIXEL_LENGTHS, READ, Tensor
from sie_triton.errors import InputError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.owlv2.resizing import in_square
from sie_triton.models.families.shared.images import original_sizes
from sie_triton.models.families.shared.labels.ids import LABEL_IDS, LABEL_SIZES, Labels, label_ids, labels_of
from sie_triton.models.families.shared.objects import EXTRACTION, LabelledImages, score
from sie_triton.models.families.shared.thresholds import threshold
from sie_triton.models.inputs.pixels import resized
from sie_triton.models.inputs.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

# By model type: class of the image processor, and default side of a patch in pixels.
CLASSES: Mapping[str, tuple[str, int]] = {"owlvit": ("OwlViTImageProcessor", 32), "owlv2": ("Owlv2ImageProcessor", 16)}


@dataclass(frozen=True, slots=True)
class OwlFiles:
    """Files of an OWL model."""

    directory: Path
    name: str
    plan: ImagePlan
    longest_text: int  # in tokens, of a label
    num_patches: int  # of an image

    @property
    def pads_to_square(self) -> bool:
        """True if an image keeps its aspect ratio."""
        return self.name == "owlv2"

    @classmethod
    def read(cls, directory: Path) -> "OwlFiles":
        config = read_fields(directory / "config.json")
        name = config.one_of("model_type", ("owlv2", "owlvit"))
        usual, usual_patch = CLASSES[name]
        text, vision = config.fields("text_config"), config.fields("vision_config")
        for tower in (text, vision):
            check_tower(tower)
        plan = square_plan(directory, usual) if name == "owlv2" else ImagePlan.read(directory, usual)
        side = vision.integer("image_size", 768, least=1)
        patch = vision.integer("patch_size", usual_patch, least=1, most=side)
        check_shape(directory, plan, side)
        return cls(directory, name, plan, text.integer("max_position_embeddings", 16, least=3), (side // patch) ** 2)


def square_plan(directory: Path, usual: str) -> ImagePlan:
    """Read OWLv2's preprocessing, which blurs and interpolates; as a filter, 0 would leave out the blur."""
    fields = image_fields(directory, usual, ("do_resize", "do_rescale", "do_pad"))
    if resample(fields) == 0:
        raise fields.unserved("resample 0 cannot be served; supported are 1 to 5")
    return ImagePlan(Resizing.read(fields, (EXACT,)), resample(fields), None, **scaling(fields))


USUAL_SCORE = 0.1

SCORE_THRESHOLD = score("score_threshold", "SIE's name for threshold, which takes precedence")
USUAL_TEMPLATE = "a photo of {}"
TEMPLATE = Parameter(
    "label_template",
    str,
    max_characters=1000,
    for_prompt=True,
    doc=f'text read for a label, with {{}} in its place; default "{USUAL_TEMPLATE}"',
)

# Resizing gives values between the 256 steps of a colour; each step is divided into 128.
FINE_STEPS = 128
FINE_PIXELS = Tensor(
    "fine_pixels",
    "INT16",
    (-1,),
    f"[numbers] of all images, row by row: {FINE_STEPS} · red, green, blue",
    PIXEL_LENGTHS.name,
    is_large=True,
)


class Owlv2(Family):
    inputs = ("image",)
    extraction = EXTRACTION
    features = (READ, FINE_PIXELS, ORIGINAL_SIZES, LABEL_IDS, LABEL_SIZES, LABEL_THRESHOLDS)
    parameters = (threshold(USUAL_SCORE), SCORE_THRESHOLD, TEMPLATE)
    reference_adapters = ("owlv2:Owlv2Adapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if model_type(directory) not in ("owlv2", "owlvit"):
            return None
        files = OwlFiles.read(directory)
        height, width = files.plan.shape
        reason = f"config.json: {files.name}, images of {height} × {width} in {files.num_patches} patches"
        return Recognised(reason, files.longest_text, {}, extracts=True, weights=(directory,))


class OwlProcessor(LabelledImages[Labels]):
    def __init__(self, files: OwlFiles, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._files = files
        self._tokenizer = open_tokenizer(files.directory)
        self._tokenizer.no_truncation()

    def template(self, part: Part) -> str:
        template = str(part.options.get(TEMPLATE.name, USUAL_TEMPLATE))
        if "{}" not in template:
            problem = f"must contain {{}} in place of the label (given {template[:80]!r})"
            raise InputError.at(f"parameter {TEMPLATE.name}", problem)
        return template

    def prompt(self, labels: tuple[Label, ...], template: str) -> Labels:
        texts = [template.replace("{}", label.read.lower()) for label in labels]
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]
        longest = self._files.longest_text
        for label, of_label in zip(labels, ids, strict=True):
            if len(of_label) > longest:
                raise InputError.at(
                    "labels",
                    f"{label.read[:80]!r} has {len(of_label)} tokens, as {template[:80]!r}; "
                    f"this model reads at most {longest} for each label; send shorter labels",
                )
        return labels_of(labels, ids)

    def pixels(self, image: "Image", where: str) -> Any:
        if not self._files.pads_to_square:
            return resized(image, self._files.plan).astype(np.int16) * np.int16(FINE_STEPS)
        return np.rint(in_square(np.asarray(image), self._files.plan.shape) * FINE_STEPS).astype(np.int16)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        labels, pictures = zip(*framed, strict=True)
        return {
            # One more for the token of the whole image.
            READ.name: Ragged(np.full(len(framed), self._files.num_patches + 1, np.int32)),
            FINE_PIXELS.name: Ragged.of([picture.pixels.reshape(-1) for picture in pictures]),
            **original_sizes(pictures),
            **label_ids(labels),
        }


def load_processor(spec: ModelSpec, directory: Path) -> OwlProcessor:
    return OwlProcessor(OwlFiles.read(directory), spec.runtime)
