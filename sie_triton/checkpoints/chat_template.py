"""The Jinja template by which a checkpoint writes conversations, from wherever transformers has saved it."""

from pathlib import Path

from sie_triton.checkpoints.files import Fields, first_line, has_file, read_fields
from sie_triton.checkpoints.image_processor import NESTED
from sie_triton.errors import LoadError

FILE = "chat_template.jinja"
KEY = "chat_template"

# As transformers prefers them.
FILES = (NESTED, "chat_template.json", FILE, "tokenizer_config.json")

MAX_BYTES = 256 * 1024


def read_chat_template(directory: Path) -> tuple[str, str]:
    """It, and where it stands; LoadError."""
    for file in FILES:
        where, text = str(directory / file), _text(directory / file)
        if len(text.encode()) > MAX_BYTES:
            raise LoadError(f"{where}: {KEY}: is longer than {MAX_BYTES} bytes, the most that are read", "unsupported")
        if text:
            return text, where
    raise LoadError(f"{FILE} is missing in {directory}: it says how a prompt is written", "not found")


def _text(path: Path) -> str:
    """Empty where there is none."""
    if path.suffix == ".json":
        fields = read_fields(path, required=False)
        return _default(fields) if fields.has(KEY) else ""
    if not has_file(path):
        return ""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1).decode()
    except (OSError, ValueError) as exc:
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc


def _default(fields: Fields) -> str:
    """Of several by their names the one called default."""
    value = fields.values[KEY]
    if not isinstance(value, list):
        return fields.text(KEY)
    named = [Fields.of(f"{fields.where}: {KEY}", each) for each in value]
    return next((each.text("template") for each in named if each.text("name") == "default"), "")
