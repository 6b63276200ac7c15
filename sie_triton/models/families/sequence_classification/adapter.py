"""The forward pass of classifiers with labels of their own."""

import json
from pathlib import Path

import numpy as np
import torch

from sie_triton.checkpoints.classifier import ClassifierFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, PIECE
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.sequence_classification import check_problem, scoring
from sie_triton.models.families.shared.classes import (
    CLASS_LENGTHS,
    CLASS_LOGITS,
    CLASS_NAMES,
    NAME_LENGTHS,
    SCORING,
)
from sie_triton.models.families.shared.sequence_head import SequenceClassifier


class ClassifierAdapter(Adapter):
    """Classifier adapter. `files` give the labels, and how requests are scored by default."""

    encoder: TorchEncoder

    def __init__(self, classifier: SequenceClassifier, files: ClassifierFiles) -> None:
        super().__init__(classifier.encoder, limits={INPUT_IDS.name: classifier.encoder.vocab_size - 1})
        self._classifier, self._files = classifier, files
        self._names = np.frombuffer(json.dumps(files.labels).encode(), np.uint8)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        logits = self._classifier.logits(batch).cpu().numpy()
        is_first = batch.features[PIECE.name].values == 0
        ways = [scoring(options, self._files) for options in batch.options or [{}] * len(logits)]
        return {
            CLASS_LOGITS.name: logits.reshape(-1),
            CLASS_LENGTHS.name: np.full(len(logits), logits.shape[1], np.int32),
            SCORING.name: np.array(ways, np.int32),
            CLASS_NAMES.name: np.tile(self._names, int(is_first.sum())),
            NAME_LENGTHS.name: (len(self._names) * is_first).astype(np.int32),
        }


def load_adapter(spec: ModelSpec, directory: Path, engine: TorchEngine) -> ClassifierAdapter:
    files = ClassifierFiles.read(directory)
    check_problem(files)
    return ClassifierAdapter(SequenceClassifier(files.text.transformer, engine), files)
