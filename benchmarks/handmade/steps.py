"""Computation of the steps. Only Triton's stubs import this module."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from sie_triton.contract.arrays import Array
from sie_triton.engines.onnx import session

WIDTH, MAX_LENGTH = 384, 256

# Of the rows of LIMIT, as wide as those of the tiny model.
LIMIT_WIDTH = 64


Compute = Callable[[Array], Array]


class Step(ABC):
    """A step that computes the tensor `written` from the tensor `read`."""

    read, written = "", ""

    def initialize(self, args: Mapping[str, str]) -> None:
        given = json.loads(args["model_config"])["parameters"]
        self._compute = self.load(**{name: value["string_value"] for name, value in given.items()})

    @abstractmethod
    def load(self, weights: str, graph: str, threads: str) -> Compute:
        """Return the function that computes the output tensor of one request."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        arrays = (pb_utils.get_input_tensor_by_name(request, self.read).as_numpy() for request in requests)
        tensors = (pb_utils.Tensor(self.written, self._compute(array)) for array in arrays)
        return [pb_utils.InferenceResponse(output_tensors=[tensor]) for tensor in tensors]


class EmptyTokenize(Step):
    read, written = "text", "input_ids"

    def load(self, weights: str, graph: str, threads: str) -> Compute:
        return lambda text: np.zeros((1, 1), np.int64)


class EmptyEncode(Step):
    read, written = "input_ids", "states"

    def load(self, weights: str, graph: str, threads: str) -> Compute:
        return lambda input_ids: np.zeros((1, 1, WIDTH), np.float32)


class EmptyPool(Step):
    read, written = "states", "dense"

    def load(self, weights: str, graph: str, threads: str) -> Compute:
        return lambda states: states[0]


class PlainTokenize(EmptyTokenize):
    def load(self, weights: str, graph: str, threads: str) -> Compute:
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(str(Path(weights) / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_LENGTH)
        return lambda text: np.array([tokenizer.encode(text[0].decode()).ids], np.int64)


class PlainEncode(EmptyEncode):
    def load(self, weights: str, graph: str, threads: str) -> Compute:
        encoder = session.open_session(Path(graph), "cpu", int(threads))
        takes = frozenset(each.name for each in encoder.get_inputs())

        def states_of(input_ids: Array) -> Array:
            num_tokens = input_ids.shape[1]
            given = {
                session.INPUT_IDS: input_ids,
                session.TOKEN_TYPE_IDS: np.zeros_like(input_ids),
                session.POSITION_IDS: np.arange(num_tokens)[None],
                session.ATTENTION_MASK: np.zeros((1, 1, num_tokens, num_tokens), np.float32),
            }
            states: Array = encoder.run([session.STATES], {name: given[name] for name in takes})[0]
            return states

        return states_of


class PlainPool(EmptyPool):
    def load(self, weights: str, graph: str, threads: str) -> Compute:
        return mean


def mean(states: Array) -> Array:
    """Return the mean over tokens, normalised."""
    pooled = states.mean(1)
    vectors: Array = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    return vectors


class LimitPreprocess:
    """A step of LIMIT: zeros for each text."""

    read, written = "text", "features"

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        read = (pb_utils.get_input_tensor_by_name(request, self.read).as_numpy() for request in requests)
        rows = (np.zeros((1, array.shape[1], LIMIT_WIDTH), np.float32) for array in read)
        return [pb_utils.InferenceResponse([pb_utils.Tensor(self.written, each)]) for each in rows]


class LimitInference(LimitPreprocess):
    read, written = "features", "rows"


class LimitPostprocess(LimitPreprocess):
    read, written = "rows", "dense"
