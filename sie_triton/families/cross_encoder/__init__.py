"""Cross-encoders: query and text are read together; a sequence-classification head gives one score."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sie_triton.checkpoints.cross_encoder import CrossEncoderFiles, is_cross_encoder
from sie_triton.contract.tensors import INPUT_IDS, TOKEN_TYPE_IDS
from sie_triton.families.base import Adapter, Recognised, TextFamily
from sie_triton.inputs import Processor
from sie_triton.spec import ONNX, TORCH, ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine


class CrossEncoder(TextFamily):
    scores_pairs = True
    features = (INPUT_IDS, TOKEN_TYPE_IDS)
    takes_loras = True
    engines = (TORCH, ONNX)
    loaders: ClassVar = {ONNX: "sie_triton.families.cross_encoder.onnx"}
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

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        from sie_triton.families.cross_encoder.tokens import PairTokenizer

        return PairTokenizer.load(directory, spec.max_sequence_length)

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.cross_encoder.adapter import load

        return load(directory, engine)
