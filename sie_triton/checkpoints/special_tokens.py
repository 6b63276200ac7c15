"""What a checkpoint's tokenizer calls its special tokens, as transformers writes it beside tokenizer.json."""

from pathlib import Path

from sie_triton.checkpoints.files import read_fields

FILES = ("tokenizer_config.json", "special_tokens_map.json")


def special_token(directory: Path, name: str, usual: str) -> str:
    """`name` is pad_token, eos_token …; `usual` is what it is where no file says. LoadError."""
    for file in FILES:
        fields = read_fields(directory / file, required=False)
        if fields.has(name):
            is_object = isinstance(fields.values[name], dict)
            return fields.fields(name).text("content") if is_object else fields.text(name)
    return usual
