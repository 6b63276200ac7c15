"""The launcher's output, lines for people or JSON, and problems with model files that change while the server runs."""

import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

from sie_triton.records.serving_file import fault_lines, read_serving
from sie_triton.system.host.repeated import repeated
from sie_triton.system.printing import Console, echo, shown
from sie_triton.system.telemetry.lines import Form, as_json


@dataclass(frozen=True)
class Terminal:
    """Descriptor of the launcher's output, and the form of its lines; `say` is safe in a signal handler."""

    descriptor: int
    form: Form

    @classmethod
    def of(cls, log_json: bool) -> "Terminal":
        return cls(1, as_json("sie_triton.server")) if log_json else cls(2, str)

    @property
    def is_for_people(self) -> bool:
        return self.form is str

    def say(self, line: str) -> None:
        """Print a line; a signal handler must not enter a print that it has interrupted."""
        with suppress(OSError):  # the terminal may be gone
            os.write(self.descriptor, f"{shown(self.form(line))}\n".encode())

    def console(self) -> Console:
        """Return a console for colours and progress, or for the same lines as JSON."""
        return Console(stderr=True) if self.is_for_people else Console(file=Lines(self.say), width=10_000)

    def announce(self, line: str) -> None:
        """Print a line that programs wait for, on standard output."""
        if self.is_for_people:
            echo(line)
        else:
            self.say(line)

    def show(self, text: str) -> None:
        if self.is_for_people:
            echo(text, err=True)
        else:
            self.say(text.strip())


READY = "SIE ready"


class Lines(io.StringIO):
    """A text file whose lines go to `say`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._line = say, ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if line.strip():
                self._say(line)
        return len(text)


class FileFaults:
    """The last problems in serving.json, whose changes it reports. One thread calls `look`."""

    def __init__(self, data_dir: Path, say: Callable[[str], None]) -> None:
        self._data_dir, self._say = data_dir, say
        self._problems = dict(serving.problems) if (serving := read_serving(data_dir)) else {}

    def look(self) -> None:
        """Report each new problem, and each file that is valid again."""
        serving = read_serving(self._data_dir)
        if serving is None or serving.problems == self._problems:
            return
        fresh = {source: each for source, each in serving.problems.items() if self._problems.get(source) != each}
        for line in fault_lines(fresh, (served.source for served in serving.models.values())):
            self._say(line)
        for source in self._problems.keys() - serving.problems.keys():
            self._say(f"valid again: {source}")
        self._problems = dict(serving.problems)


def report_faults(data_dir: Path, say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Report problems every second, on a separate thread, inside the context."""
    return repeated(FileFaults(data_dir, say).look, 1.0, "file-faults")
