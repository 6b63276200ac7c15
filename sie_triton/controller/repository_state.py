"""The models that Triton must serve, read from the repository, and a watch for changed model files."""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from sie_triton.records.revisions import model_of, steps_behind
from sie_triton.records.serving_file import Serving, names_of_model_files
from sie_triton.records.status import STAGES

Look = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model in the repository: its ensembles, which clients call, and the prefix of its steps' names."""

    steps: str
    ensembles: Sequence[str]


def wanted(repository: Path) -> dict[str, Wanted]:
    """Return each model with an ensemble in `repository`, by Triton's name of it."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(repository.glob("[!.]*/config.pbtxt")):
        if steps := steps_behind(path.read_text()):
            found.setdefault(model_of(steps), {})[path.parent.name] = steps
    return {model: Wanted(steps[model], list(steps)) for model, steps in found.items() if model in steps}


def steps_in(repository: Path) -> set[str]:
    """Return the prefixes of the names of all steps that have a directory."""
    names = (path.parent.name.rpartition("-") for path in repository.glob("[!.]*/config.pbtxt"))
    return {steps for steps, _, stage in names if stage in STAGES}


def remove_steps(repository: Path, steps: str) -> None:
    for stage in STAGES:
        shutil.rmtree(repository / f"{steps}-{stage}", ignore_errors=True)


def touch(repository: Path, ensemble: str) -> None:
    """Mark an ensemble as changed, so that Triton reloads it."""
    os.utime(repository / ensemble / "config.pbtxt")


class Watch:
    """Reports changed model files once two polls, a second apart, agree, because a file may be in the midst of a write.

    Holds the latest poll and the last one reported. One thread calls it.
    """

    def __init__(self) -> None:
        self._reported: Look | None = None
        self._latest: Look | None = None
        self._due = 0.0

    def has_changed(self, serving: Serving) -> bool:
        """True once for each change; the first poll reports none."""
        if monotonic() < self._due:
            return False
        self._due = monotonic() + 1.0
        before, self._latest = self._latest, look(serving)
        if self._reported is None:
            self._reported = self._latest
        if self._latest in (self._reported, None) or self._latest != before:
            return False
        self._reported = self._latest
        return True


def look(serving: Serving) -> Look:
    """Return modification time, size and inode of each model file by path; unreadable directories are left out."""
    found: dict[str, tuple[int, ...]] = {str(path): _stat(path) for path in serving.named_files}
    for directory in filter(None, (serving.models_dir, serving.added_dir)):
        with suppress(OSError):
            found[str(directory)] = ()
            for name in names_of_model_files(directory):
                path = f"{directory}/{name}"
                found[path] = _stat(path)
    return found


def _stat(path: str | Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:  # removed, or a dangling link
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
