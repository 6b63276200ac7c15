"""Special tokens of a checkpoint's tokenizer, from the files that transformers writes beside tokenizer.json."""

from pathlib import Path

from sie_triton.checkpoints.files import read_fields
from sie_triton.errors import LoadError

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"

# Beside a tokenizer that its library refuses: why, as an object with message and reason.
REFUSED = "tokenizer.refused.json"

FILES = (CONFIG, "special_tokens_map.json")


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
