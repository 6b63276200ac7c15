"""A family whose forward pass takes a given time and no core, as on a device: a static model that sleeps."""

import time
from pathlib import Path
from typing import ClassVar

from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines import Engine
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.static_embedding import StaticEmbedding
from sie_triton.models.families.static_embedding.adapter import load_adapter as load_static

# Time of a pass, and of each item in it, in seconds.
PASS_S, ITEM_S = 0.04, 0.03


class Sleeping(StaticEmbedding):
    engines: ClassVar = {"sie_triton.engines:Engine": __name__}


class SleepingAdapter(Adapter):
    def __init__(self, computed: Adapter) -> None:
        super().__init__(computed.encoder, limits=computed.limits)
        self.weights_bytes = computed.weights_bytes
        self._computed = computed

    def forward(self, batch: Batch) -> Rows:
        time.sleep(PASS_S + ITEM_S * batch.num_items)
        return self._computed.forward(batch)


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> SleepingAdapter:
    return SleepingAdapter(load_static(spec, directory, engine))
