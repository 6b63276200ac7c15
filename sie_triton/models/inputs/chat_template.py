"""Messages → the text of a conversation, as transformers formats it with a checkpoint's own template."""

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from signal import SIGKILL
from threading import Event, Lock, Timer
from typing import Any
from weakref import finalize

from sie_triton.checkpoints.chat_template import read_chat_template
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.errors import BusyError, InputError, LoadError
from sie_triton.models.inputs.limits import LIMITS, InputLimits
from sie_triton.system.processes.confined import start

REFUSES = "the model's chat template refuses the prompt"

Message = Mapping[str, Any]


class ChatTemplate:
    """A template. `special` maps the names of special tokens in templates to the tokens.

    `arguments` are those of each call; by default, a conversation is written up to where the answer begins.
    """

    def __init__(
        self,
        template: str,
        special: Mapping[str, str],
        where: str,
        limits: InputLimits = LIMITS,
        arguments: Mapping[str, bool] | None = None,
    ) -> None:
        self._template, self.special, self.where = template, special, where
        self._arguments = {"add_generation_prompt": True} if arguments is None else arguments
        ask = TemplateProcess(limits).ask
        # What a template writes with the date changes.
        self._written = ask if "strftime_now" in template else lru_cache(limits.max_kept_conversations)(ask)

    @classmethod
    def read(cls, directory: Path, arguments: Mapping[str, bool] | None = None) -> "ChatTemplate":
        """Read the template of a checkpoint. LoadError says what is wrong with its files."""
        template, where = read_chat_template(directory)
        names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
        special = {name: special_token(directory, name, "") for name in names}
        return cls(template, {name: token for name, token in special.items() if token}, where, arguments=arguments)

    def text(self, messages: Sequence[Message]) -> str:
        """Format messages.

        Raise InputError if the template refuses them, LoadError if it cannot be read, BusyError if it cannot run now.
        """
        given = {"tools": None, "documents": None, **self._arguments, **self.special, "messages": messages}
        answer = json.loads(self._written(json.dumps({"template": self._template, "names": given})))
        if "unreadable" in answer:
            raise LoadError(f"{self.where}: cannot be read: {answer['unreadable']}", "corrupt")
        if "refused" in answer:
            raise InputError(f"{REFUSES}: {answer['refused']}")
        return str(answer["text"])


class TemplateProcess:
    """A process that answers orders one after another, see `models/inputs/chat_template_process.py`; thread-safe.

    The first order starts it, and the next one after its end starts it again.
    """

    def __init__(self, limits: InputLimits = LIMITS) -> None:
        self._limits = limits
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    def ask(self, order: str) -> bytes:
        """Return the answer. Raise InputError if it takes too much, BusyError if the system ends the process."""
        with self._lock:
            try:
                process = self._running()
                answer = _exchange(process, order.encode() + b"\n", self._limits.template_s)
            except (OSError, RuntimeError) as exc:  # too many processes, descriptors or threads, or it has ended
                raise BusyError(f"the model's chat template cannot run now ({exc}); send the request again") from exc
        if not answer:
            raise InputError(f"{REFUSES}: it takes more time or memory than a template may")
        return answer

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = process = start("sie_triton.models.inputs.chat_template_process")
            self._end = finalize(self, _end, process)
            if not _exchange(process, b"", self._limits.template_start_s):
                raise OSError("its process does not start")
        return self._process


def _exchange(process: "subprocess.Popen[bytes]", order: bytes, seconds: float) -> bytes:
    """Return the line with which a process answers; empty if it takes more than `seconds`, or if it ends early.

    Raise OSError if the system has killed it: when memory is short, such processes are the first.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    late = Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = Timer(seconds, stop)
    timer.start()
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(order)
            process.stdin.flush()
        answer = process.stdout.readline(LIMITS.max_conversation_bytes)
    finally:
        timer.cancel()
    if answer.endswith(b"\n"):
        return answer
    _end(process)
    if process.returncode == -SIGKILL and not late.is_set():
        raise OSError("its process was killed")
    return b""


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    with suppress(OSError), process:  # closes its pipes, and waits
        pass
