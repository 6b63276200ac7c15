"""A checkpoint's chat template (Jinja), in whichever file transformers saved it."""

from pathlib import Path

from sie_triton.checkpoints.files import Fields, first_line, has_file, read_bytes, read_fields
from sie_triton.checkpoints.image_processor import NESTED
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.transformer_settings import settings_of
from sie_triton.errors import LoadError

FILE = "chat_template.jinja"
KEY = "chat_template"

# In transformers' order of preference.
FILES = (NESTED, "chat_template.json", FILE, "tokenizer_config.json")


def read_chat_template(directory: Path) -> tuple[str, str]:
    """Return the template and the file that holds it; raise LoadError if no file does."""
    for file in FILES:
        where, text = str(directory / file), _text(directory / file)
        if len(text.encode()) > LIMITS.max_chat_template_bytes:
            raise LoadError(
                f"{where}: {KEY}: must be at most {LIMITS.max_chat_template_bytes} bytes long", "unsupported"
            )
        if text:
            return text, where
    raise LoadError(f"{FILE} is missing in {directory}: prompts cannot be written without it", "not found")


def is_rendered(transformer: Path) -> bool:
    """True if sentence-transformers 6 writes each text into the template: the settings of the module are missing."""
    return not settings_of(transformer).values and any(_text(transformer / file) for file in FILES)


def _text(path: Path) -> str:
    """Return the template in a file; empty if it has none."""
    if path.suffix == ".json":
        fields = read_fields(path, required=False)
        return _default(fields) if fields.has(KEY) else ""
    if not has_file(path):
        return ""
    try:
        return read_bytes(path, LIMITS.max_chat_template_bytes).decode()
    except (OSError, ValueError) as exc:
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc


def _default(fields: Fields) -> str:
    """Return the template named default if there are several."""
    value = fields.values[KEY]
    if not isinstance(value, list):
        return fields.text(KEY)
    named = [Fields.of(f"{fields.where}: {KEY}", each) for each in value]
    return next((each.text("template") for each in named if each.text("name") == "default"), "")
