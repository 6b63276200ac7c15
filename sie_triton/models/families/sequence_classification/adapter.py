"""The forward pass of classifiers with labels of their own."""

from pathlib import Path

import numpy as np
import torch

from sie_triton.checkpoints.classifier import ClassifierFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.sequence_classification import check_problem, scoring
from sie_triton.models.families.shared.classes import CLASS_LOGITS, SCORING, names_of, of_texts
from sie_triton.models.families.shared.sequence_head import SequenceClassifier
from sie_triton.models.families.shared.token_batch import TokenAdapter


class ClassifierAdapter(TokenAdapter):
    """Classifier adapter. `files` give the labels, and how requests are scored by default."""

    def __init__(self, classifier: SequenceClassifier, files: ClassifierFiles) -> None:
        super().__init__(classifier.encoder)
        self._classifier, self._files = classifier, files
        self._names = names_of(files.labels)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        logits = self._classifier.logits(batch).cpu().numpy()
        ways = [scoring(options, self._files) for options in batch.options or [{}] * len(logits)]
        return {
            CLASS_LOGITS.name: logits.reshape(-1),
            CLASS_LOGITS.lengths: np.full(len(logits), logits.shape[1], np.int32),
            SCORING.name: np.array(ways, np.int32),
            **of_texts(self._names, batch),
        }


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> ClassifierAdapter:
    files = ClassifierFiles.read(directory)
    check_problem(files)
    return ClassifierAdapter(SequenceClassifier(files.text.transformer, engine), files)
