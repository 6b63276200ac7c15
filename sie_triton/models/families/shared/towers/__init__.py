"""Two transformers with one embedding space: one for texts, one for images."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ
from sie_triton.models.families.base import Family, Options

HUB, ON_THE_HUB = "hub://", "hf-hub:"


@dataclass(frozen=True)
class TowerOptions(Options):
    """Options of CLIP and SigLIP."""

    backend: Literal["transformers", "open_clip"] = "transformers"  # of SIE; here the checkpoint's files decide
    open_clip_model_id: str = ""  # "hf-hub:org/name", which SIE reads in place of hf_id: the same repository
    dense_dim: int | None = None  # equal to that of tasks


class TowerFamily(Family):
    inputs = ("text", "image")
    outputs = (ENCODE_OUTPUTS["dense"],)
    features = (READ, INPUT_IDS, PIXELS, IMAGE_SIZES)
    options = TowerOptions

    def refusals(self, spec: ModelSpec) -> Iterator[str]:
        where, options = "profiles.default.adapter_options.loadtime", TowerOptions.of(spec)
        asked, repository = options.open_clip_model_id, spec.weights.removeprefix(HUB).partition("@")[0]
        if asked and spec.weights.startswith(HUB) and asked != f"{ON_THE_HUB}{repository}":
            yield (
                f"{where}.open_clip_model_id: must be {ON_THE_HUB}{repository}, like hf_id (given {asked}); hf_id "
                "must name the repository whose weights are to be served"
            )
        if options.dense_dim not in (None, dim := spec.dims.get("dense")):
            yield f"{where}.dense_dim: must be {dim}, like tasks.encode.dense.dim (given {options.dense_dim})"
