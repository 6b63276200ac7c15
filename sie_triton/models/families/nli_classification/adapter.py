"""The NLI family's forward pass: contradiction and entailment of each text with each label's hypothesis."""

from pathlib import Path

import numpy as np
import torch

from sie_triton.checkpoints.classifier import ClassifierFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import LABEL_LENGTHS, LABEL_THRESHOLDS
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.nli_classification import LABEL, judgement
from sie_triton.models.families.shared.classes import CLASS_LOGITS
from sie_triton.models.families.shared.sequence_head import SequenceClassifier
from sie_triton.models.families.shared.token_batch import TokenAdapter


class NliAdapter(TokenAdapter):
    """NLI adapter. `wanted` are the indices of the contradiction and entailment logits."""

    def __init__(self, classifier: SequenceClassifier, wanted: tuple[int, int]) -> None:
        super().__init__(classifier.encoder)
        self._classifier, self._wanted = classifier, list(wanted)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        logits = self._classifier.logits(batch)[:, self._wanted].cpu().numpy()
        thresholds, counts = batch.features[LABEL_THRESHOLDS.name]
        assert counts is not None
        return {
            CLASS_LOGITS.name: logits.reshape(-1),
            CLASS_LOGITS.lengths: np.full(len(logits), 2, np.int32),
            LABEL.name: batch.features[LABEL.name].values,
            LABEL_THRESHOLDS.name: thresholds,
            LABEL_LENGTHS.name: counts,
        }


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> NliAdapter:
    files = ClassifierFiles.read(directory)
    wanted = judgement(files)
    return NliAdapter(SequenceClassifier(files.text.transformer, engine), wanted)
