"""Tokens of our tokenizer beside those of the installed transformers: python -m tests.support.tokens DIRECTORY...

Imports no other library than transformers, so that it runs with any version of it.
"""

import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import transformers

from sie_triton.checkpoints.modules import tokenizer_kwargs
from sie_triton.models.inputs.cutting import encoded, truncation_side
from sie_triton.models.inputs.tokenizer import open_tokenizer, truncating
from sie_triton.pipeline.stages.tokenizer_files import overlay
from sie_triton.pipeline.worker.tokenizer import write_tokenizer

# In several scripts, with accents, spaces, added tokens, and special tokens written out. The last one is long.
TEXTS = (
    "Hello, World",
    "Größe für Käse über Öl",
    "日本語の text 東京",
    "[QRY] who <pad> it [MASK] is</s> <mask> [PAD]<|im_start|>",
    "  two  spaces\tand a line\n\nﬁne ①",
    "Привет, मुझे 👩‍👩‍👧 naïve İstanbul",
    "x",
    "",
    " ".join(f"word{i} lorem ipsum" for i in range(40)),
)

LENGTH = 16


def library(directory: Path, **arguments: Any) -> Any:
    if not (directory / "config.json").exists() and not (directory / "tokenizer_config.json").exists():
        return transformers.PreTrainedTokenizerFast.from_pretrained(directory, **arguments)
    return transformers.AutoTokenizer.from_pretrained(directory, **arguments)


def compare(directory: Path, cache: Path) -> None:
    """Raise AssertionError for the first text with other tokens."""
    theirs = library(directory, **tokenizer_kwargs(directory, directory))
    made = overlay(directory, cache, write_tokenizer)
    for pairs in (False, True):
        ours = truncating(open_tokenizer(made, pairs=pairs), LENGTH, pairs=pairs)
        assert truncation_side(ours) == theirs.truncation_side
        inputs = [(a, b) for a, b in zip(TEXTS, TEXTS[::-1], strict=True)] if pairs else list(TEXTS)
        expected = theirs(
            *(list(map(list, zip(*inputs, strict=True))) if pairs else [inputs]),
            truncation=True,
            max_length=LENGTH,
            return_token_type_ids=True,
        )
        for text, found, ids, types in zip(
            inputs, encoded(ours, inputs), expected["input_ids"], expected["token_type_ids"], strict=True
        ):
            assert (text, found.ids, found.type_ids) == (text, ids, types)


if __name__ == "__main__":
    for directory in sys.argv[1:]:
        compare(Path(directory), Path(mkdtemp()))
    print(transformers.__version__)
