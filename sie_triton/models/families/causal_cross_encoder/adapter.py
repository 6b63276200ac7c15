"""The forward pass of causal cross-encoders: a language model's logits of one or two tokens for the next token."""

from pathlib import Path

import numpy as np
import torch

from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import SCORES
from sie_triton.engines.torch.dense_layers import activation
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.causal_cross_encoder import CausalFiles
from sie_triton.models.families.shared.judge import Judge
from sie_triton.models.families.shared.token_batch import TokenAdapter


class CausalCrossEncoderAdapter(TokenAdapter):
    """Causal cross-encoder adapter. `activation` turns the difference of the logits into a score."""

    def __init__(self, judge: Judge, activation: torch.nn.Module) -> None:
        super().__init__(judge.encoder)
        self._judge, self._activation = judge, activation

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        yes, *no = self._judge.logits(batch).unbind(-1)
        scores = self._activation(yes - no[0] if no else yes)
        return {SCORES.name: scores.cpu().numpy().astype(np.float32)}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> CausalCrossEncoderAdapter:
    """Load a CrossEncoder directory; raise LoadError saying what in it cannot be used."""
    files = CausalFiles.read(directory)
    judge = Judge(files.text.transformer, list(files.tokens), engine)
    return CausalCrossEncoderAdapter(judge, activation(files.activation, directory))
