"""What the steps compute. Triton's stubs import this, and nothing else does."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from sie_triton.engines.onnx import session

Array = npt.NDArray[Any]

WIDTH, MAX_LENGTH = 384, 256


class Step(ABC):
    """From the tensor `read` to the tensor `written`."""

    read, written = "", ""

    def initialize(self, args: Mapping[str, str]) -> None:
        given = json.loads(args["model_config"])["parameters"]
        self.load(**{name: value["string_value"] for name, value in given.items()})

    def load(self, weights: str, graph: str, threads: str) -> None:
        pass

    @abstractmethod
    def compute(self, array: Array) -> Array:
        """Of one request."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        arrays = (pb_utils.get_input_tensor_by_name(request, self.read).as_numpy() for request in requests)
        tensors = (pb_utils.Tensor(self.written, self.compute(array)) for array in arrays)
        return [pb_utils.InferenceResponse(output_tensors=[tensor]) for tensor in tensors]


class EmptyTokenize(Step):
    read, written = "text", "input_ids"

    def compute(self, array: Array) -> Array:
        return np.zeros((1, 1), np.int64)


class EmptyEncode(Step):
    read, written = "input_ids", "states"

    def compute(self, array: Array) -> Array:
        return np.zeros((1, 1, WIDTH), np.float32)


class EmptyPool(Step):
    read, written = "states", "dense"

    def compute(self, array: Array) -> Array:
        states: Array = array[0]
        return states


class PlainTokenize(EmptyTokenize):
    def load(self, weights: str, graph: str, threads: str) -> None:
        import tokenizers

        self._tokenizer = tokenizers.Tokenizer.from_file(str(Path(weights) / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_LENGTH)

    def compute(self, array: Array) -> Array:
        return np.array([self._tokenizer.encode(array[0].decode()).ids], np.int64)


class PlainEncode(EmptyEncode):
    def load(self, weights: str, graph: str, threads: str) -> None:
        self._session = session.open_session(Path(graph), "cpu", int(threads))
        self._takes = frozenset(each.name for each in self._session.get_inputs())

    def compute(self, array: Array) -> Array:
        num_tokens = array.shape[1]
        given = {
            session.INPUT_IDS: array,
            session.TOKEN_TYPE_IDS: np.zeros_like(array),
            session.POSITION_IDS: np.arange(num_tokens)[None],
            session.ATTENTION_MASK: np.zeros((1, 1, num_tokens, num_tokens), np.float32),
        }
        states: Array = self._session.run([session.STATES], {name: given[name] for name in self._takes})[0]
        return states


class PlainPool(EmptyPool):
    def compute(self, array: Array) -> Array:
        mean = array.mean(1)
        vectors: Array = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return vectors
