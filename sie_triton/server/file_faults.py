"""Problems with model files that change while the server runs, for the launcher's terminal.

serving.json, which the controller writes → lines
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from sie_triton.records.serving_file import fault_lines, read_serving
from sie_triton.system.host.repeated import repeated


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
