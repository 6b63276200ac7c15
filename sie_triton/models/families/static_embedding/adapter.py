"""A static model's forward pass: the mean of each item's rows. NumPy only."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from sie_triton.checkpoints.files import first_line
from sie_triton.contract import Batch, Rows
from sie_triton.contract.arrays import Floats, Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DENSE, INPUT_IDS
from sie_triton.contract.transforms import normalize
from sie_triton.engines import Encoder, Engine
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.shared.token_batch import tokens
from sie_triton.models.families.static_embedding import FACTORS, MODEL2VECS, ROWS, WEIGHTS, StaticFiles, table_of
from sie_triton.models.inputs.tokenizer import open_tokenizer

# Number of rows that are gathered at once; a text may have millions of tokens.
CHUNK_TOKENS = 16384


class StaticAdapter(Adapter):
    """`table`: float32 [1 + tokens, dim]; the first row is 0 and stands for a text without tokens.

    A vector has at most `most` entries, and unit length before they are cut if `is_unit`.
    """

    def __init__(self, table: Floats, most: int, *, is_unit: bool) -> None:
        super().__init__(Encoder(), limits={INPUT_IDS.name: len(table) - 1})
        self.weights_bytes = table.nbytes
        self._table, self._most = table, most
        self._is_unit = is_unit and most < table.shape[1]

    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        vectors = means(self._table, input_ids, lengths)
        return {DENSE.name: (normalize(vectors) if self._is_unit else vectors)[:, : self._most]}


def means(table: Floats, ids: Ints, lengths: Ints) -> Floats:
    """Return the mean of each item's rows, [items, dim]; `ids` has the rows of all items, one after another.

    >>> means(np.array([[0.0], [2.0], [4.0]], np.float32), np.array([1, 2, 2]), np.array([2, 1])).tolist()
    [[3.0], [4.0]]
    """
    sums = np.zeros((len(lengths), table.shape[1]), np.float32)
    of_item = np.repeat(np.arange(len(lengths)), lengths)
    for start in range(0, len(ids), CHUNK_TOKENS):
        items, firsts = np.unique(of_item[start : start + CHUNK_TOKENS], return_index=True)
        sums[items] += np.add.reduceat(table[ids[start : start + CHUNK_TOKENS]], firsts)
    found: Floats = sums / lengths[:, None].astype(np.float32)
    return found


def _rows(file: Any, name: str, num_tokens: int) -> Any:
    """Return an array of the row of each token, [tokens, dim]."""
    table, beside = file.get_tensor(name), file.keys() if name == MODEL2VECS else ()
    rows = table[file.get_tensor(ROWS)[:num_tokens]] if ROWS in beside else table[:num_tokens]
    return rows * file.get_tensor(FACTORS)[:num_tokens, None] if FACTORS in beside else rows


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> StaticAdapter:
    files = StaticFiles.read(directory)
    name, num_rows, dim = table_of(files.directory)
    num_tokens = 1 + max(open_tokenizer(files.directory).get_vocab().values(), default=0)
    if num_tokens > num_rows:
        raise LoadError(f"{directory}: the tokenizer has {num_tokens} tokens, but the table {num_rows} rows", "corrupt")
    table = np.zeros((1 + num_tokens, dim), np.float32)
    try:
        with safe_open(files.directory / WEIGHTS, "numpy") as file:
            table[1:] = _rows(file, name, num_tokens)
    except Exception as exc:  # safetensors raises nothing narrower for a type that NumPy lacks
        path = files.directory / WEIGHTS
        raise LoadError(f"{path}: {name} cannot be read by NumPy: {first_line(exc)}", "unsupported") from exc
    return StaticAdapter(table, files.most, is_unit=files.normalize)
