"""Which family a directory belongs to, by its files."""

from pathlib import Path

from sie_triton.checkpoints.bge_m3 import LAYERS
from sie_triton.checkpoints.cross_encoder import is_cross_encoder
from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.modules import modules_of
from sie_triton.checkpoints.sentence_transformers import SPLADE
from sie_triton.checkpoints.stanford_colbert import is_stanford_colbert
from sie_triton.errors import LoadError


def kind_of(directory: Path) -> str:
    """The family's name; LoadError where only a model file can say how it is to be used."""
    if any(path for name in LAYERS for path in directory.glob(f"{name}.*")):
        return "bge_m3"
    if is_stanford_colbert(directory):
        return "multivector"
    modules = modules_of(directory)
    names = [name for name, _ in modules]
    if "LogitScore" in names:
        needed = "a language model that scores needs a model file: adapter_path llm_reranker, loadtime.input_format"
        raise LoadError(f"{directory}: {needed}", "unsupported")
    if SPLADE in names:
        return "splade"
    saved = read_fields(directory / "config_sentence_transformers.json", required=False)
    if "MultiVectorMask" in names or saved.text("model_type", "") == "ColBERT":
        return "multivector"
    if len(modules) == 1 and is_cross_encoder(read_fields(modules[0][1] / "config.json", required=False)):
        return "cross_encoder"
    return "sentence_transformer"
