"""Sparse models: a weight for each token of the vocabulary."""

from pathlib import Path
from typing import TYPE_CHECKING

from sie_triton.checkpoints.modules import modules_of
from sie_triton.checkpoints.sentence_transformers import SPLADE, SparseEncoderFiles
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.tensors import INPUT_IDS
from sie_triton.families.base import Adapter, Recognised, TextFamily
from sie_triton.inputs import Processor
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine


class Splade(TextFamily):
    outputs = (ENCODE_OUTPUTS["sparse"],)
    features = (INPUT_IDS,)
    reference_adapters = ("splade_flash:SPLADEFlashAdapter", "gte_sparse_flash:GTESparseFlashAdapter")

    def recognise(self, directory: Path) -> Recognised | None:
        if SPLADE not in [name for name, _ in modules_of(directory)]:
            return None
        files = SparseEncoderFiles.read(directory)
        return Recognised(f"modules.json names {SPLADE}", files.text.max_sequence_length, {"sparse": files.dim})

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        from sie_triton.inputs.tokenizer import TextTokenizer

        return TextTokenizer.load(directory, spec.max_sequence_length)

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.splade.adapter import load

        return load(directory, engine)
