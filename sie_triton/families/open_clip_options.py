"""How SIE's model files ask for a checkpoint of open_clip."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sie_triton.families.base import Options
from sie_triton.spec import ModelSpec

HUB, ON_THE_HUB = "hub://", "hf-hub:"


@dataclass(frozen=True)
class TowerOptions(Options):
    """`backend` is what SIE loads a model with: here the files of the checkpoint decide. With open_clip, SIE loads
    `open_clip_model_id` ("hf-hub:org/name") and no hf_id, so that they must be the same; `dense_dim` must be that of
    tasks.
    """

    backend: Literal["transformers", "open_clip"] = "transformers"
    open_clip_model_id: str = ""
    dense_dim: int | None = None

    def refusals(self, spec: ModelSpec) -> Iterator[str]:
        """As Family.refusals."""
        where, asked = "profiles.default.adapter_options.loadtime", self.open_clip_model_id
        repository = spec.weights.removeprefix(HUB).partition("@")[0]
        if asked and spec.weights.startswith(HUB) and asked != f"{ON_THE_HUB}{repository}":
            yield (
                f"{where}.open_clip_model_id: must be {ON_THE_HUB}{repository}, as hf_id (given {asked}); the "
                "repository whose weights are to be served goes into hf_id"
            )
        if self.dense_dim not in (None, dim := spec.dims.get("dense")):
            yield f"{where}.dense_dim: must be {dim}, as tasks.encode.dense.dim (given {self.dense_dim})"
