"""Special tokens of a checkpoint's tokenizer, from the files that transformers writes beside tokenizer.json."""

from pathlib import Path

from sie_triton.checkpoints.files import read_fields

FILES = ("tokenizer_config.json", "special_tokens_map.json")


def special_token(directory: Path, name: str, usual: str) -> str:
    """Return the token `name` (pad_token, eos_token, …), or `usual` if no file names it.

    Raises LoadError if a file cannot be read.
    """
    for file in FILES:
        fields = read_fields(directory / file, required=False)
        if fields.has(name):
            is_object = isinstance(fields.values[name], dict)
            return fields.fields(name).text("content") if is_object else fields.text(name)
    return usual
