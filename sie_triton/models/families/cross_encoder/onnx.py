"""Cross-encoders whose checkpoint is an ONNX file. The graph includes the head."""

from pathlib import Path

import numpy as np
import torch

from sie_triton.checkpoints.cross_encoder import CrossEncoderFiles
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, SCORES, TOKEN_TYPE_IDS
from sie_triton.engines.onnx.engine import OnnxEncoder, OnnxEngine
from sie_triton.engines.torch.dense_layers import activation
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.shared.token_batch import tokens


class OnnxCrossEncoder(Adapter):
    """Cross-encoder adapter. `activation` turns the logit of the only label into a score."""

    encoder: OnnxEncoder

    def __init__(self, encoder: OnnxEncoder, activation: torch.nn.Module) -> None:
        super().__init__(encoder, limits={INPUT_IDS.name: encoder.vocab_size - 1})
        self._activation = activation

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        logits = self.encoder.logits(*tokens(batch), batch.features[TOKEN_TYPE_IDS.name].values)
        return {SCORES.name: self._activation(logits)[:, 0].numpy().astype(np.float32)}


def load_adapter(spec: ModelSpec, directory: Path, engine: OnnxEngine) -> OnnxCrossEncoder:
    files = CrossEncoderFiles.read(directory)
    model = engine.load(files.text.transformer)
    return OnnxCrossEncoder(engine.classifier(model), activation(files.activation, directory))
