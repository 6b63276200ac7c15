"""CLIP's texts → tokens, and images → pixels. No torch."""

from functools import partial
from pathlib import Path

from sie_triton.checkpoints.towers import TowerFiles
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.shared.towers.processor import TowerProcessor
from sie_triton.models.inputs.pixels import resized
from sie_triton.models.inputs.tokenizer import open_tokenizer, truncating


def load_processor(spec: ModelSpec, directory: Path) -> TowerProcessor:
    files = TowerFiles.read(directory)
    tokenizer = truncating(open_tokenizer(files.directory), min(spec.max_sequence_length, files.longest_text))
    return TowerProcessor(tokenizer, partial(resized, plan=files.plan), lambda _: 1 + files.num_patches, spec.runtime)
