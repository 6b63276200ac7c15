"""OWLv2 and OWL-ViT: objects of any kind that a label names (Minderer et al., 2022 and 2023).

image → square, resized → vision transformer → for each patch: a box, a class vector, its shift and scale
label → "a photo of …" → text transformer → state of the closing token → projection, cached
class vector · label → the best label of each box
"""

from pathlib import Path

from sie_triton.checkpoints.towers import model_type
from sie_triton.contract import Parameter
from sie_triton.contract.tensors import LABEL_THRESHOLDS, ORIGINAL_SIZES, PIXEL_LENGTHS, READ, Tensor
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.owlv2.files import OwlFiles
from sie_triton.models.families.shared.labels.ids import LABEL_IDS, LABEL_SIZES
from sie_triton.models.families.shared.objects import EXTRACTION, score
from sie_triton.models.families.shared.thresholds import threshold

USUAL_SCORE = 0.1

SCORE_THRESHOLD = score("score_threshold", "SIE's name for threshold, which takes precedence")
USUAL_TEMPLATE = "a photo of {}"
TEMPLATE = Parameter(
    "label_template",
    str,
    max_characters=1000,
    for_prompt=True,
    doc=f'text that the model reads for a label, with {{}} in place of the label; default "{USUAL_TEMPLATE}"',
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
