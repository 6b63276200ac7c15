"""Options with which SIE's model files name a checkpoint of open_clip."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.base import Options

HUB, ON_THE_HUB = "hub://", "hf-hub:"


@dataclass(frozen=True)
class TowerOptions(Options):
    """Options of CLIP and SigLIP.

    `backend` is the library with which SIE loads the model; here the checkpoint's files decide. For open_clip, SIE
    reads `open_clip_model_id` ("hf-hub:org/name") instead of hf_id, so both must name the same repository. `dense_dim`
    must be equal to that of tasks.
    """

    backend: Literal["transformers", "open_clip"] = "transformers"
    open_clip_model_id: str = ""
    dense_dim: int | None = None

    def refusals(self, spec: ModelSpec) -> Iterator[str]:
        """See Family.refusals."""
        where, asked = "profiles.default.adapter_options.loadtime", self.open_clip_model_id
        repository = spec.weights.removeprefix(HUB).partition("@")[0]
        if asked and spec.weights.startswith(HUB) and asked != f"{ON_THE_HUB}{repository}":
            yield (
                f"{where}.open_clip_model_id: must be {ON_THE_HUB}{repository}, like hf_id (given {asked}); hf_id "
                "must name the repository whose weights are to be served"
            )
        if self.dense_dim not in (None, dim := spec.dims.get("dense")):
            yield f"{where}.dense_dim: must be {dim}, like tasks.encode.dense.dim (given {self.dense_dim})"
