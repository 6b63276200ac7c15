"""The process that writes conversations by a model's chat template.

    python -m sie_triton.models.inputs.chat_template_process
    standard input, a line each: {"template", "names": special tokens and messages}
    standard output: an empty line once it is ready, then a line each: {"text"}, {"refused": why the template refuses
    the messages} or {"unreadable": …}

The template is untrusted code. It runs in Jinja's sandbox, on strings, lists and dictionaries only, and cannot start
anything. A short one can take any time and memory, as it is compiled or as it runs: hence the process, which is
confined where the system can do that. Its parent ends it when a conversation takes too long.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2.debug  # noqa: F401, which is imported for an error: a confined process can import nothing
from jinja2 import Template, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from sie_triton.models.inputs.limits import LIMITS
from sie_triton.system.processes import confined


def written(template: str, names: Mapping[str, Any]) -> dict[str, str]:
    """Return the answer of this process."""
    try:
        made = _compiled(template)
    except (TemplateError, RecursionError, ValueError) as exc:
        return {"unreadable": _line(exc)}
    try:
        text = made.render(**names)
        text.encode()
    except MemoryError:
        raise
    # A template may fail in any way that Python code on strings and numbers can.
    except Exception as exc:
        return {"refused": _line(exc)}
    return (
        {"text": text}
        if len(text) <= LIMITS.max_conversation_characters
        else {"refused": f"it writes more than {LIMITS.max_conversation_characters} characters"}
    )


@lru_cache(1)
def _compiled(template: str) -> Template:
    return _environment().from_string(template)


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


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


def main() -> None:
    time.tzset()  # reads a file
    written("{{ strftime_now('%d %b') }}{{ nothing.at_all }}", {})
    confined.die_first()
    confined.die_with_parent()
    confined.limit_resources(memory_bytes=LIMITS.template_memory_bytes, file_bytes=0, seconds=None)
    with suppress(OSError):  # a system that cannot confine a process; the sandbox is what there is
        confined.confine(memory_bytes=LIMITS.template_memory_bytes, file_bytes=0, seconds=None)
    os.write(1, b"\n")
    for line in sys.stdin.buffer:
        # Without memory it ends, and another process begins anew.
        os.write(1, json.dumps(written(**json.loads(line))).encode() + b"\n")
    # A regular end of the interpreter would need system calls that are not allowed.
    os._exit(0)


if __name__ == "__main__":
    main()
