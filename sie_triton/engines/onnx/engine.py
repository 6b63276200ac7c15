"""Engine for checkpoints in ONNX format. Its rows have equal length, so items of similar length share a pass."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoConfig

from sie_triton.arrays import Ints
from sie_triton.checkpoints.contents import read_any_config
from sie_triton.engines.base import Encoder, Engine
from sie_triton.engines.onnx.session import (
    ATTENTION_MASK,
    INPUT_IDS,
    POSITION_IDS,
    STATES,
    TOKEN_TYPE_IDS,
    open_session,
)
from sie_triton.engines.torch.rows import SideBySide, side_by_side
from sie_triton.engines.torch.transfers import Indices
from sie_triton.errors import LoadError
from sie_triton.host.footprint import CUDA_CONTEXT_BYTES
from sie_triton.measurements import Measurements
from sie_triton.spec import ModelSpec

# ONNX Runtime has no exception class for out-of-memory errors; their messages contain one of these.
NO_MEMORY = ("Failed to allocate memory", "out of memory")


TAKEN = (INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS, POSITION_IDS)

# Output names: token states as optimum exports them, the same for sentence-transformers, and a classifier's logits.
TOKEN_STATES = (STATES, "token_embeddings")
LOGITS = ("logits",)


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """An open session, its file, the vocabulary size from config.json, and the size of its files in bytes."""

    session: Any
    path: Path
    vocab_size: int
    num_bytes: int


class OnnxEngine(Engine):
    """ONNX Runtime on the CPU or a GPU. Loading raises LoadError if it is not installed."""

    name = "onnx"

    def __init__(self, spec: ModelSpec, device: str, measurements: Measurements) -> None:
        super().__init__(spec, device, measurements)
        self._num_threads = spec.runtime.cpu_threads or len(os.sched_getaffinity(0))
        self._weights_bytes = 0

    def load(self, directory: Path) -> OnnxModel:
        """Load the ONNX file in `directory`. Raise LoadError if it is missing or invalid."""
        path = directory / self.spec.onnx_file
        if not path.is_file():
            raise LoadError(f"{path}: is missing", "not found")
        read_any_config(directory)
        vocab_size = int(AutoConfig.from_pretrained(directory, trust_remote_code=False).get_text_config().vocab_size)
        num_bytes = sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))
        session = open_session(path, self.device, self._num_threads)
        self._weights_bytes += num_bytes
        return OnnxModel(session, path, vocab_size, num_bytes)

    def encoder(self, model: OnnxModel, is_causal: bool | None = None) -> "OnnxEncoder":
        """Raise LoadError if the graph has no output of token states. `is_causal` has no effect."""
        return OnnxEncoder(model, TOKEN_STATES, rank=3)

    def classifier(self, model: OnnxModel) -> "OnnxEncoder":
        """Raise LoadError if the graph has no output of logits."""
        return OnnxEncoder(model, LOGITS, rank=2)

    def settle(self, encoder: "OnnxEncoder") -> None:
        """Do nothing: an ONNX graph has a single path."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return super().is_out_of_memory(error) or any(text in str(error) for text in NO_MEMORY)

    def used_bytes(self) -> int:
        """On a GPU: the weights and the CUDA context. ONNX Runtime does not report the memory it holds for passes."""
        return super().used_bytes() if self.device == "cpu" else CUDA_CONTEXT_BYTES + self._weights_bytes


class OnnxEncoder(Encoder):
    """Runs the graph and reads the first output whose name is in `wanted` and whose number of dimensions is `rank`."""

    paths = ("padded",)
    path = "padded"

    def __init__(self, model: OnnxModel, wanted: tuple[str, ...], rank: int) -> None:
        self.weights_bytes, self.vocab_size = model.num_bytes, model.vocab_size
        self._session = model.session
        self._takes = [each.name for each in self._session.get_inputs()]
        if unknown := [name for name in self._takes if name not in TAKEN]:
            raise LoadError(f"{model.path}: has the input {unknown[0]}; supported inputs are {', '.join(TAKEN)}")
        outputs = [each.name for each in self._session.get_outputs() if each.name in wanted and len(each.shape) == rank]
        if not outputs:
            given = ", ".join(f"{each.name} {each.shape}" for each in self._session.get_outputs())
            raise LoadError(f"{model.path}: has the outputs {given}; it needs {' or '.join(wanted)}", "unsupported")
        self._output = outputs[0]

    def hidden_states(
        self,
        input_ids: Ints,
        lengths: Ints,
        keys: Ints | None = None,
        type_ids: Ints | None = None,
        extra_indices: Sequence[Indices] = (),
    ) -> torch.Tensor:
        """input_ids int32 [tokens], lengths int32 [items] → float32 [tokens, d]; otherwise as torch's Encoder."""
        keys = lengths if keys is None else keys
        states: torch.Tensor | None = None
        for rows in side_by_side(lengths, keys):
            padded = self._run(rows, input_ids, type_ids)
            states = torch.empty(len(input_ids), padded.shape[-1]) if states is None else states
            states[torch.from_numpy(rows.places)] = torch.from_numpy(padded[rows.real]).float()
        assert states is not None
        return states

    def logits(self, input_ids: Ints, lengths: Ints, type_ids: Ints) -> torch.Tensor:
        """float32 [items, labels]."""
        made = [(rows.items, self._run(rows, input_ids, type_ids)) for rows in side_by_side(lengths, lengths)]
        order = np.concatenate([items for items, _ in made])
        return torch.from_numpy(np.concatenate([logits for _, logits in made])[np.argsort(order)]).float()

    def _run(self, rows: SideBySide, input_ids: Ints, type_ids: Ints | None) -> npt.NDArray[Any]:
        given = {
            INPUT_IDS: rows.filled(input_ids),
            ATTENTION_MASK: rows.seen.astype(np.int64),
            TOKEN_TYPE_IDS: np.zeros(rows.real.shape, np.int64) if type_ids is None else rows.filled(type_ids),
            POSITION_IDS: np.broadcast_to(np.arange(rows.real.shape[1]), rows.real.shape),
        }
        output: npt.NDArray[Any]
        (output,) = self._session.run([self._output], {name: given[name] for name in self._takes})
        return output
