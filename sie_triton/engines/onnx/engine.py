"""Engine for checkpoints in ONNX format. Its rows have equal length, so items of similar length share a pass."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, PreTrainedConfig

from sie_triton.checkpoints.contents import read_any_config
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.base import Encoder, Engine
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.onnx.session import (
    ATTENTION_MASK,
    INPUT_IDS,
    POSITION_IDS,
    STATES,
    TOKEN_TYPE_IDS,
    open_session,
)
from sie_triton.engines.torch.facts import padding_position
from sie_triton.engines.torch.faults import empty_cache, is_out_of_memory, is_unusable
from sie_triton.engines.torch.rows import NO_PADDING, TOKENS_PER_PADDING, SideBySide, positions_of, side_by_side
from sie_triton.engines.torch.transfers import Indices
from sie_triton.errors import LoadError
from sie_triton.system.host.container import num_processors
from sie_triton.system.host.footprint import CUDA_CONTEXT_BYTES

# ONNX Runtime has no exception class for out-of-memory errors; their messages contain one of these.
NO_MEMORY = ("Failed to allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")

# Form of a failed call of a CUDA library (`CudaCall` in ONNX Runtime's cuda_call.cc): name of the library and number.
CUDA_FAILURE = re.compile(r"\b(CUDA|CUBLAS|CUDNN|CUDNN_FE|CURAND|CUSPARSE|CUFFT) failure -?\d+: ")

# Failures that concern one call: the next may succeed.
OF_ONE_CALL = ("NOT_SUPPORTED", "INVALID_VALUE", "BAD_PARAM")

TAKEN = (INPUT_IDS, ATTENTION_MASK, TOKEN_TYPE_IDS, POSITION_IDS)


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """An open session, its file, the model's configuration, and the size of its files in bytes."""

    session: Any
    path: Path
    config: PreTrainedConfig
    num_bytes: int


class OnnxEngine(Engine):
    """ONNX Runtime on the CPU or a GPU. Loading raises LoadError if it is not installed."""

    name = "onnx"

    def __init__(self, spec: ModelSpec, device: str, measurements: Measurements) -> None:
        super().__init__(spec, device, measurements)
        self._num_threads = spec.runtime.cpu_threads or num_processors()
        self._weights_bytes = 0

    def load(self, directory: Path) -> OnnxModel:
        """Load the ONNX file in `directory`. Raise LoadError if it is missing or invalid."""
        path = directory / self.spec.onnx_file
        if not path.is_file():
            raise LoadError(f"{path}: is missing", "not found")
        read_any_config(directory)
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        num_bytes = sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))
        session = open_session(path, self.device, self._num_threads)
        self._weights_bytes += num_bytes
        return OnnxModel(session, path, config, num_bytes)

    def encoder(self, model: OnnxModel, is_causal: bool | None = None) -> "OnnxEncoder":
        """Raise LoadError if the graph has no output of token states. `is_causal` has no effect."""
        return OnnxEncoder(model, (STATES, "token_embeddings"), 3, self.device)

    def classifier(self, model: OnnxModel) -> "OnnxEncoder":
        """Raise LoadError if the graph has no output of logits."""
        return OnnxEncoder(model, ("logits",), 2, self.device)

    def settle(self, encoder: "OnnxEncoder", *, hides: int = 0) -> None:
        """Do nothing: an ONNX graph has a single path."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error) or any(text in str(error) for text in NO_MEMORY)

    def is_broken(self, error: BaseException) -> bool:
        """True if a CUDA library failed inside ONNX Runtime, or if PyTorch cannot use the device either."""
        text = str(error)
        has_failed = bool(CUDA_FAILURE.search(text)) and not any(each in text for each in (*NO_MEMORY, *OF_ONE_CALL))
        return has_failed or is_unusable(self.device)

    def free_unused_memory(self) -> None:
        super().free_unused_memory()
        empty_cache()

    def used_bytes(self) -> int:
        """Return the memory in use, in bytes; on a GPU: weights, CUDA context, and PyTorch's memory for states.

        ONNX Runtime does not report the memory it holds for passes.
        """
        if self.device == "cpu":
            return super().used_bytes()
        return CUDA_CONTEXT_BYTES + self._weights_bytes + int(torch.cuda.memory_reserved(self.device))


class OnnxEncoder(Encoder):
    """Runs the graph and reads the first output whose name is in `wanted` and whose number of dimensions is `rank`."""

    paths = ("padded",)
    path = "padded"

    def __init__(self, model: OnnxModel, wanted: tuple[str, ...], rank: int, device: str = "cpu") -> None:
        config = model.config.get_text_config()
        self.weights_bytes, self.vocab_size = model.num_bytes, int(config.vocab_size)
        self._device = torch.device(device)
        self._takes = [each.name for each in model.session.get_inputs()]
        self._padding = getattr(config, "pad_token_id", None)
        self._padding_position = numbering(model.config) if POSITION_IDS in self._takes else -1
        if unknown := [name for name in self._takes if name not in TAKEN]:
            raise LoadError(f"{model.path}: has the input {unknown[0]}; supported inputs are {', '.join(TAKEN)}")
        outputs = model.session.get_outputs()
        usable = [each for each in outputs if each.name in wanted and len(each.shape) == rank]
        if not usable:
            given = ", ".join(f"{each.name} {each.shape}" for each in outputs)
            raise LoadError(f"{model.path}: has the outputs {given}; it needs {' or '.join(wanted)}", "unsupported")
        self._session, self._output = model.session, usable[0].name

    def hidden_states(
        self,
        input_ids: Ints,
        lengths: Ints,
        keys: Ints | None = None,
        type_ids: Ints | None = None,
        extra_indices: Sequence[Indices] = (),
    ) -> torch.Tensor:
        """input_ids int32 [tokens], lengths int32 [items] → float32 [tokens, d]; otherwise as torch's Encoder."""
        groups = list(side_by_side(lengths, lengths if keys is None else keys))
        given = [Indices(np.flatnonzero(rows.real), rows.places) for rows in groups]
        Indices.upload([*given, *extra_indices], self._device)
        states: torch.Tensor | None = None
        for rows, indices in zip(groups, given, strict=True):
            padded = self._run(rows, input_ids, lengths, type_ids).flatten(0, 1).to(self._device)
            real, places = indices.on(self._device)
            if len(real) == rows.real.size == len(input_ids):  # items of equal length, in their own order
                return padded.float()
            if states is None:
                states = padded.new_empty(len(input_ids), padded.shape[-1], dtype=torch.float32)
            states.index_copy_(0, places, padded.index_select(0, real).float())
        assert states is not None
        return states

    def logits(self, input_ids: Ints, lengths: Ints, type_ids: Ints) -> torch.Tensor:
        """float32 [items, labels], on the CPU.

        A graph that reads the last token that is no padding knows padding by the id in config.json; without one, it
        reads the last token of a row.
        """
        groups = list(side_by_side(lengths, lengths, NO_PADDING if self._padding is None else TOKENS_PER_PADDING))
        each = [self._run(rows, input_ids, lengths, type_ids) for rows in groups]
        order = np.concatenate([rows.items for rows in groups])
        return torch.cat(each).float()[torch.from_numpy(np.argsort(order))]

    def _run(self, rows: SideBySide, input_ids: Ints, lengths: Ints, type_ids: Ints | None) -> torch.Tensor:
        """Return the graph's output for some items, on the CPU; its inputs are int64 [rows, width] each.

        On a GPU, ONNX Runtime copies both. Its own memory there would be reused by another thread's pass, though
        PyTorch's kernels that read it may still wait in their stream.
        """
        given = {
            INPUT_IDS: rows.filled(input_ids, self._padding or 0),
            ATTENTION_MASK: rows.seen.astype(np.int64),
            TOKEN_TYPE_IDS: np.zeros(rows.real.shape, np.int64) if type_ids is None else rows.filled(type_ids),
        }
        if POSITION_IDS in self._takes:
            given[POSITION_IDS] = rows.filled(positions_of(input_ids, lengths, self._padding_position))
        (made,) = self._session.run([self._output], {name: given[name] for name in self._takes})
        return torch.from_numpy(made)


def numbering(config: PreTrainedConfig) -> int:
    """Return `padding_position` of the architecture, whose weights are in the graph."""
    auto: Any = AutoModel
    with torch.device("meta"):
        return padding_position(auto.from_config(config))
