"""LLM rerankers computed by a remote server, which returns the probabilities of yes and no. No torch."""

from pathlib import Path

import numpy as np

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import SCORES
from sie_triton.engines.remote.engine import RemoteEncoder, RemoteEngine
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.llm_reranker import RerankerOptions, judgement_ids
from sie_triton.models.families.shared.token_batch import limits_of, separate


class RemoteReranker(Adapter):
    """Adapter of remote LLM rerankers. `tokens` are those of yes and of no."""

    encoder: RemoteEncoder

    def __init__(
        self, encoder: RemoteEncoder, files: TextFiles, tokens: tuple[int, int], options: RerankerOptions
    ) -> None:
        super().__init__(encoder, limits=limits_of(files))
        self._tokens = tokens
        self._is_probability = options.score_mode == "log_softmax"

    def forward(self, batch: Batch) -> Rows:
        likely = self.encoder.choice_probabilities(separate(batch), self._tokens, batch.deadline_ns)
        yes, no = np.log(np.maximum(likely, 1e-30)).T
        return {SCORES.name: (likely[:, 0] if self._is_probability else yes - no).astype(np.float32)}


def load_adapter(spec: ModelSpec, directory: Path, engine: RemoteEngine) -> RemoteReranker:
    """Load the small files; errors other than LoadError are the endpoint's."""
    options, files, encoder = RerankerOptions.of(spec), TextFiles.read(directory), engine.encoder()
    no, yes = judgement_ids(options, files)
    # Whether the endpoint responds, and with which of two APIs.
    encoder.choice_probabilities([np.array([1, 2, 3], np.int32)], (yes, no), None)
    return RemoteReranker(encoder, files, (yes, no), options)
