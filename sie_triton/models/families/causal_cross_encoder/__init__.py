"""Causal cross-encoders: a language model judges query and text, whose chat template has a role for each.

system prompt, query and text → chat template → language model → logits of one or two tokens → score

CrossEncoder of sentence-transformers saves them, with a module LogitScore.
"""

from pathlib import Path

from sie_triton.checkpoints.chat_template import FILE
from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.models.families.base import Recognised, TextFamily
from sie_triton.models.families.causal_cross_encoder.files import CausalFiles, is_causal_cross_encoder


class CausalCrossEncoder(TextFamily):
    scores_pairs = True
    features = (INPUT_IDS,)
    takes_loras = True
    reference_adapters = ("native_causal_cross_encoder:NativeCausalCrossEncoderAdapter",)
    files = (FILE,)

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_causal_cross_encoder(directory):
            return None
        files = CausalFiles.read(directory)
        weights = (files.text.transformer,)
        return Recognised(files.reason, files.text.max_sequence_length, {}, scores=True, weights=weights)
