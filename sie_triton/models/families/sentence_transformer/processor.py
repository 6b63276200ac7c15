"""Texts → packed token ids, as of all text families, with what late chunking must know of the model. No torch."""

from pathlib import Path

from sie_triton.checkpoints.sentence_transformers import SentenceTransformerFiles
from sie_triton.contract.spec import REMOTE, ModelSpec
from sie_triton.models.families.sentence_transformer import DenseOptions
from sie_triton.models.inputs import text_processor
from sie_triton.models.inputs.tokenizer import TextTokenizer


def load_processor(spec: ModelSpec, directory: Path) -> TextTokenizer:
    processor = text_processor.load_processor(spec, directory)
    if spec.engine != REMOTE:
        options = DenseOptions.of(spec)
        files = SentenceTransformerFiles.read(directory, options.dense_projection_path)
        modes = files.pooling if files.is_declared else options.modes(files)  # which would log a difference again
        processor.pools_means = modes == ("mean",)
    return processor
