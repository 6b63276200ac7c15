"""The forward pass of cross-encoders: query and text read together give one score."""

from pathlib import Path

import numpy as np
import torch

from sie_triton.checkpoints.cross_encoder import CrossEncoderFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import SCORES
from sie_triton.engines.torch.dense_layers import activation
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.shared.sequence_head import SequenceClassifier
from sie_triton.models.families.shared.token_batch import TokenAdapter


class CrossEncoderAdapter(TokenAdapter):
    """Cross-encoder adapter. `activation` turns the logit of the only label into a score."""

    def __init__(self, classifier: SequenceClassifier, activation: torch.nn.Module) -> None:
        super().__init__(classifier.encoder)
        self._classifier, self._activation = classifier, activation

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        scores = self._activation(self._classifier.logits(batch))
        return {SCORES.name: scores[:, 0].cpu().numpy().astype(np.float32)}


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> CrossEncoderAdapter:
    files = CrossEncoderFiles.read(directory)
    classifier = SequenceClassifier(files.text.transformer, engine)
    return CrossEncoderAdapter(classifier, activation(files.activation, directory))
