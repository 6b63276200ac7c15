"""Messages → the text of a conversation, as transformers writes it with a checkpoint's own template.

The template is somebody else's: it runs in Jinja's sandbox, over texts, lists and dictionaries, and can start nothing.
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

# What templates know of a tokenizer, where it has them.
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

Message = Mapping[str, Any]


class ChatTemplate:
    """`special` are the special tokens, by the names that templates have for them."""

    def __init__(self, template: str, special: Mapping[str, str], where: str) -> None:
        self.special, self.where = special, where
        try:
            self._template = _environment().from_string(template)
        except (TemplateError, RecursionError) as exc:
            raise LoadError(f"{where}: cannot be read: {first_line(exc)}", "corrupt") from exc

    @classmethod
    def read(cls, directory: Path) -> "ChatTemplate":
        """LoadError says what is wrong with its files."""
        template, where = read_chat_template(directory)
        special = {name: special_token(directory, name, "") for name in SPECIAL}
        return cls(template, {name: token for name, token in special.items() if token}, where)

    def text(self, messages: Sequence[Message]) -> str:
        """Up to where the answer begins; InputError where the template refuses the messages."""
        given = {"tools": None, "documents": None, "add_generation_prompt": True, **self.special}
        try:
            text = self._template.render(messages=messages, **given)
            text.encode()
        # It may do anything that Python can with texts and numbers.
        except Exception as exc:
            raise InputError(f"the model's chat template refuses the prompt: {first_line(exc)}") from exc
        return text


class _Names(Namespace):
    """Without names that Python itself reads."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"{name} is no name that a template may set")
        super().__setitem__(name, value)


def _namespace(*given: Any, **named: Any) -> _Names:
    made = _Names()
    for name, value in dict(*given, **named).items():
        made[name] = value
    return made


def _environment() -> ImmutableSandboxedEnvironment:
    """With what templates are given by transformers."""
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
