"""Families that model files name and this version does not serve: what they are for, and SIE's names of them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planned:
    """`does` finishes "a model that"; `reference_adapters` are its names in SIE's own model files."""

    does: str
    reference_adapters: tuple[str, ...]


PLANNED: Mapping[str, Planned] = {
    "nemo_colembed": Planned("embeds pages for late interaction", ("nemo_colembed:NemoColEmbedAdapter",)),
    "florence2": Planned("reads images", ("florence2:Florence2Adapter",)),
    "donut": Planned("reads documents", ("donut:DonutAdapter",)),
    "grounding_dino": Planned("finds objects in images", ("grounding_dino:GroundingDINOAdapter",)),
    "owlv2": Planned("finds objects in images", ("owlv2:Owlv2Adapter",)),
    "glm_ocr": Planned("reads documents", ("glm_ocr:GlmOcrAdapter",)),
    "lighton_ocr": Planned("reads documents", ("lighton_ocr:LightOnOCRAdapter",)),
    "paddleocr_vl": Planned("reads documents", ("paddleocr_vl:PaddleOCRVLAdapter",)),
}
