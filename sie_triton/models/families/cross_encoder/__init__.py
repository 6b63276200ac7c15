"""Cross-encoders: query and text are read together; a sequence-classification head gives one score."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from sie_triton.checkpoints.cross_encoder import CrossEncoderFiles, is_cross_encoder
from sie_triton.contract import TRUNCATION_SIDE, Features, Ragged
from sie_triton.contract.spec import ONNX, TORCH, ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, TOKEN_TYPE_IDS
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.inputs.cutting import encoded
from sie_triton.models.inputs.tokenizer import TextTokenizer, packed_encodings, packed_ids


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


class PairTokenizer(TextTokenizer):
    """Tokenizer of pairs. Truncates the longer text first, like CrossEncoder of sentence-transformers."""

    reads_pairs = True

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        encodings = encoded(self._tokenizer, framed)
        features = packed_encodings(encodings)
        types = packed_ids([encoding.type_ids for encoding in encodings])[INPUT_IDS.name].values
        return {**features, TOKEN_TYPE_IDS.name: Ragged(types, features[INPUT_IDS.name].lengths)}


def load_processor(spec: ModelSpec, directory: Path) -> PairTokenizer:
    return PairTokenizer.load(directory, spec.max_sequence_length)
