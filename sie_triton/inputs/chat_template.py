"""Messages → the text of a conversation, as transformers formats it with a checkpoint's own template.

The template is untrusted code: it runs in Jinja's sandbox, on strings, lists and dictionaries only, and cannot start
anything.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from sie_triton.checkpoints.chat_template import read_chat_template
from sie_triton.checkpoints.files import first_line
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.errors import InputError, LoadError

# Special tokens of the tokenizer that templates may use.
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template. `special` maps the names of special tokens in templates to the tokens."""

    def __init__(self, template: str, special: Mapping[str, str], where: str) -> None:
        self.special, self.where = special, where
        try:
            self._template = _environment().from_string(template)
        except (TemplateError, RecursionError) as exc:
            raise LoadError(f"{where}: cannot be read: {first_line(exc)}", "corrupt") from exc

    @classmethod
    def read(cls, directory: Path) -> "ChatTemplate":
        """Read the template of a checkpoint. LoadError says what is wrong with its files."""
        template, where = read_chat_template(directory)
        special = {name: special_token(directory, name, "") for name in SPECIAL}
        return cls(template, {name: token for name, token in special.items() if token}, where)

    def text(self, messages: Sequence[Message]) -> str:
        """Format messages up to where the answer begins. Raise InputError if the template refuses them."""
        given = {"tools": None, "documents": None, "add_generation_prompt": True, **self.special}
        try:
            text = self._template.render(messages=messages, **given)
            text.encode()
        # A template may fail in any way that Python code on strings and numbers can.
        except Exception as exc:
            raise InputError(f"the model's chat template refuses the prompt: {first_line(exc)}") from exc
        return text


class _Names(Namespace):
    """A namespace for templates that refuses names with a leading underscore, which Python itself may use."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a template may not set the name {name}")
        super().__setitem__(name, value)


def _namespace(*given: Any, **named: Any) -> _Names:
    made = _Names()
    for name, value in dict(*given, **named).items():
        made[name] = value
    return made


def _environment() -> ImmutableSandboxedEnvironment:
    """Make a sandbox with the filters and functions that transformers offers to templates."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.filters["tojson"] = _to_json
    made.globals |= {"namespace": _namespace, "raise_exception": _refuse, "strftime_now": _now}
    return made


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
