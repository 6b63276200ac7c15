"""A static model's forward pass: the mean of each item's rows. NumPy only."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from sie_triton.arrays import Floats
from sie_triton.checkpoints.files import first_line
from sie_triton.contract import Batch, Rows
from sie_triton.contract.tensors import DENSE, INPUT_IDS
from sie_triton.engines import Encoder, Engine
from sie_triton.errors import LoadError
from sie_triton.families.base import Adapter
from sie_triton.families.shared.token_batch import tokens
from sie_triton.families.static_embedding.files import WEIGHTS, StaticFiles
from sie_triton.spec import ModelSpec


class StaticAdapter(Adapter):
    """`table`: float32 [tokens + 1, dim]; the last row is 0 and stands for a text without tokens."""

    def __init__(self, table: Floats) -> None:
        super().__init__(Encoder(), limits={INPUT_IDS.name: len(table) - 1})
        self.weights_bytes = table.nbytes
        self._table = table

    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        starts = np.cumsum(lengths) - lengths
        sums = np.add.reduceat(self._table[input_ids], starts, dtype=np.float32)
        return {DENSE.name: sums / lengths[:, None].astype(np.float32)}


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> StaticAdapter:
    """Load the table; raise LoadError saying what in the directory cannot be used."""
    files = StaticFiles.read(directory)
    try:
        table = load_file(files.directory / WEIGHTS)[files.table]
    except Exception as exc:  # safetensors raises nothing narrower for a type that NumPy lacks
        raise LoadError(f"{files.directory / WEIGHTS}: cannot be read: {first_line(exc)}", "corrupt") from exc
    return StaticAdapter(np.concatenate([table.astype(np.float32), np.zeros((1, files.dim), np.float32)]))
