"""Cross-encoders: query and text are read together; a sequence-classification head gives one score."""

from pathlib import Path
from typing import ClassVar

from sie_triton.checkpoints.cross_encoder import CrossEncoderFiles, is_cross_encoder
from sie_triton.contract import TRUNCATION_SIDE
from sie_triton.contract.spec import ONNX, TORCH
from sie_triton.contract.tensors import INPUT_IDS, TOKEN_TYPE_IDS
from sie_triton.models.families.base import Recognised, TextFamily


class CrossEncoder(TextFamily):
    scores_pairs = True
    parameters = (TRUNCATION_SIDE,)
    features = (INPUT_IDS, TOKEN_TYPE_IDS)
    takes_loras = True
    engines: ClassVar = {TORCH: ".adapter", ONNX: ".onnx"}
    reference_adapters = (
        "cross_encoder:CrossEncoderAdapter",
        "bert_flash_cross_encoder:BertFlashCrossEncoderAdapter",
        "modernbert_flash_cross_encoder:ModernBertFlashCrossEncoderAdapter",
        "jina_flash_cross_encoder:JinaFlashCrossEncoderAdapter",
    )

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_cross_encoder(directory):
            return None
        files = CrossEncoderFiles.read(directory)
        reason = f"config.json: {files.chain}"
        weights = (files.text.transformer,)
        return Recognised(reason, files.text.max_sequence_length, {}, scores=True, weights=weights)
