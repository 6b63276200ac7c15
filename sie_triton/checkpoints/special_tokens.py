"""Files of a checkpoint's tokenizer, and its special tokens, which transformers writes next to tokenizer.json."""

from pathlib import Path

from sie_triton.checkpoints.files import has_file, read_fields
from sie_triton.errors import LoadError

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"

# A larger file of a tokenizer is not read. The largest ones have 60 MB.
MAX_BYTES = 128 << 20

# Files of which one holds a tokenizer's vocabulary.
VOCABULARIES = (
    TOKENIZER,
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
)

# Beside a tokenizer that its library refuses: why, as an object with message and reason.
REFUSED = "tokenizer.refused.json"

FILES = (CONFIG, "special_tokens_map.json")


def has_vocabulary(directory: Path) -> bool:
    return any(has_file(directory / name) for name in VOCABULARIES)


def is_before_fast(directory: Path) -> bool:
    """True if the tokenizer is in a form that is older than tokenizer.json."""
    return has_vocabulary(directory) and not has_file(directory / TOKENIZER)


def special_token(directory: Path, name: str, usual: str | None = None) -> str:
    """Return the token `name` (pad_token, eos_token, …), or `usual` if no file names it.

    Raises LoadError if a file cannot be read, or if none names a token without a `usual` one.
    """
    for file in FILES:
        fields = read_fields(directory / file, required=False)
        if fields.has(name):
            is_object = isinstance(fields.values[name], dict)
            return fields.fields(name).text("content") if is_object else fields.text(name)
    if usual is None:
        raise LoadError(f"{' and '.join(FILES)} in {directory}: {name} is missing", "unsupported")
    return usual
