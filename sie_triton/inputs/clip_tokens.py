"""vocab.json and merges.txt → CLIP's tokenizer, for checkpoints older than tokenizer.json. No torch."""

from pathlib import Path

import tokenizers
from tokenizers import normalizers, pre_tokenizers, processors

from sie_triton.checkpoints.files import first_line
from sie_triton.checkpoints.towers import MERGES, VOCABULARY, is_before_fast
from sie_triton.errors import LoadError
from sie_triton.inputs.tokenizer import open_tokenizer

OPENING, CLOSING = "<|startoftext|>", "<|endoftext|>"

# Units within which pairs of characters are merged; anything between them is dropped.
WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


def open_clip_tokenizer(directory: Path) -> tokenizers.Tokenizer:
    """Open the tokenizer of a CLIP checkpoint. Raise LoadError if it cannot be read."""
    return _built(directory) if is_before_fast(directory) else open_tokenizer(directory)


def _built(directory: Path) -> tokenizers.Tokenizer:
    try:
        model = tokenizers.models.BPE.from_file(
            *(str(directory / name) for name in (VOCABULARY, MERGES)), unk_token=CLOSING, end_of_word_suffix="</w>"
        )
    except Exception as exc:  # the library raises plain Exception
        raise LoadError(f"{directory}: {VOCABULARY} and {MERGES} cannot be read: {first_line(exc)}", "corrupt") from exc
    tokenizer = tokenizers.Tokenizer(model)
    opening, closing = (tokenizer.token_to_id(text) for text in (OPENING, CLOSING))
    if opening is None or closing is None:
        message = f"{directory / VOCABULARY}: has no {OPENING} and {CLOSING}; only CLIP's vocabulary can be read"
        raise LoadError(message, "unsupported")
    tokenizer.add_special_tokens([OPENING, CLOSING])
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(tokenizers.Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(WORDS), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        (CLOSING, closing), (OPENING, opening), trim_offsets=False, add_prefix_space=False
    )
    return tokenizer
