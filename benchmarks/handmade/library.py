"""The step of LIBRARY, which computes with transformers. Only Triton's stubs import this module."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from sie_triton.contract.arrays import Array

# Texts of a forward pass; sentence-transformers' own number is 32.
PASS_TEXTS = 64


class LibraryEncode:
    """Tokenizes, pads, computes and pools the texts of all requests of a batch, sorted by length."""

    def initialize(self, args: Mapping[str, str]) -> None:
        from transformers import AutoModel, AutoTokenizer

        given = {name: each["string_value"] for name, each in json.loads(args["model_config"])["parameters"].items()}
        self._device = given["device"]
        self._tokenizer = AutoTokenizer.from_pretrained(given["weights"])
        model: Any = AutoModel.from_pretrained(given["weights"], dtype=getattr(torch, given["precision"]))
        self._model = model.to(self._device).eval()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        texts = [pb_utils.get_input_tensor_by_name(request, "text").as_numpy().ravel() for request in requests]
        vectors = self._vectors([text.decode() for each in texts for text in each])
        ends = np.cumsum([0, *map(len, texts)])
        rows = [vectors[start:end][None] for start, end in pairwise(ends)]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("dense", each)]) for each in rows]

    @torch.inference_mode()
    def _vectors(self, texts: Sequence[str]) -> Array:
        order = np.argsort([len(text) for text in texts])
        parts = [self._pass([texts[i] for i in order[at : at + PASS_TEXTS]]) for at in range(0, len(order), PASS_TEXTS)]
        vectors = np.empty((len(texts), parts[0].shape[1]), np.float32)
        vectors[order] = np.concatenate(parts)
        return vectors

    def _pass(self, texts: Sequence[str]) -> Array:
        given = self._tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(self._device)
        states = self._model(**given).last_hidden_state
        mask = given["attention_mask"][..., None]
        pooled = (states * mask).sum(1) / mask.sum(1)
        vectors: Array = torch.nn.functional.normalize(pooled.float()).cpu().numpy()
        return vectors
