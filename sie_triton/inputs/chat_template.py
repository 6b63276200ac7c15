"""Messages → the text of a conversation, as transformers formats it with a checkpoint's own template."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.chat_template import read_chat_template
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.errors import InputError, LoadError

# Special tokens of the tokenizer that templates may use.
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# Conversations that are kept: most requests have the same instruction.
MAX_KEPT = 256

# Longest wait for the process, in seconds: it starts before it counts its own time.
WAIT_S = 60.0

# Environment variables that the process inherits; the others may hold secrets.
KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TZ")

Message = Mapping[str, Any]


class ChatTemplate:
    """A template. `special` maps the names of special tokens in templates to the tokens."""

    def __init__(self, template: str, special: Mapping[str, str], where: str) -> None:
        self._template, self.special, self.where = template, special, where
        self._written = lru_cache(MAX_KEPT)(_written)

    @classmethod
    def read(cls, directory: Path) -> "ChatTemplate":
        """Read the template of a checkpoint. LoadError says what is wrong with its files."""
        template, where = read_chat_template(directory)
        special = {name: special_token(directory, name, "") for name in SPECIAL}
        return cls(template, {name: token for name, token in special.items() if token}, where)

    def text(self, messages: Sequence[Message]) -> str:
        """Format messages up to where the answer begins.

        Raise InputError if the template refuses them, or LoadError if it cannot be read.
        """
        given = {"tools": None, "documents": None, "add_generation_prompt": True, **self.special, "messages": messages}
        answer = json.loads(self._written(json.dumps({"template": self._template, "names": given})))
        if "unreadable" in answer:
            raise LoadError(f"{self.where}: cannot be read: {answer['unreadable']}", "corrupt")
        if "refused" in answer:
            raise InputError(f"the model's chat template refuses the prompt: {answer['refused']}")
        return str(answer["text"])


def _written(order: str) -> bytes:
    """Return the answer of a process, see `processes/chat_template.py`."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sie_triton.processes.chat_template"],
            env={name: os.environ[name] for name in KEPT if name in os.environ},
            input=order.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=WAIT_S,
            check=True,
        )
    except subprocess.SubprocessError:
        return b'{"refused": "it takes more time or memory than a template may"}'
    return done.stdout
