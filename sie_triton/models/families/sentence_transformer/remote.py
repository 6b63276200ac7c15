"""Dense models computed by a remote server, which pools and normalises. No torch."""

from pathlib import Path

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DENSE
from sie_triton.engines.remote.engine import RemoteEncoder, RemoteEngine
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.shared.token_batch import limits_of, separate


class RemoteDense(Adapter):
    encoder: RemoteEncoder

    def __init__(self, encoder: RemoteEncoder, files: TextFiles, dim: int) -> None:
        super().__init__(encoder, limits=limits_of(files))
        self._dim = dim

    def forward(self, batch: Batch) -> Rows:
        return {DENSE.name: self.encoder.vectors(separate(batch), self._dim, batch.deadline_ns)}


def load_adapter(spec: ModelSpec, directory: Path, engine: RemoteEngine) -> RemoteDense:
    return RemoteDense(engine.encoder(), TextFiles.read(directory), spec.dims["dense"])
