"""vocab.json and merges.txt → CLIP's tokenizer, for checkpoints that have no tokenizer.json. No torch."""

from pathlib import Path

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from sie_triton.checkpoints.files import first_line, read_fields
from sie_triton.errors import LoadError

OPENING, CLOSING = "<|startoftext|>", "<|endoftext|>"
WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def of_clip(directory: Path) -> tokenizers.Tokenizer:
    """Build CLIP's tokenizer. Raise LoadError if one of the two files cannot be read or is not CLIP's."""
    vocabulary = read_fields(directory / "vocab.json")
    opening, closing = (vocabulary.integer(each) for each in (OPENING, CLOSING))
    try:
        model = models.BPE.from_file(
            str(directory / "vocab.json"), str(directory / "merges.txt"), unk_token=CLOSING, end_of_word_suffix="</w>"
        )
    except Exception as exc:  # the library raises plain Exception
        raise LoadError(f"{directory}: vocab.json and merges.txt cannot be read: {first_line(exc)}", "corrupt") from exc
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens([OPENING, CLOSING])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(tokenizers.Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{OPENING} $A {CLOSING}", special_tokens=[(OPENING, opening), (CLOSING, closing)]
    )
    return tokenizer
