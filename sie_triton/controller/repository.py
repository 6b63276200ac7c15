"""The model repository: what Triton must serve, its update to the model files, and what is wrong with these."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from sie_triton.contract.names import sie_name
from sie_triton.errors import ServerError
from sie_triton.records.change import ChangeOutcome, ChangeRefused
from sie_triton.records.revisions import model_of, steps_behind
from sie_triton.records.serving_file import Serving, file_of, is_model_file, names_of_model_files
from sie_triton.records.status import STAGES
from sie_triton.settings.sources import FILE_VARIABLE, PREFIX

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


# The child gives way to the processes that answer requests.
PROGRAM = "import os; os.nice(10); from sie_triton.pipeline.render.refresh import main; main()"


def refresh(
    data_dir: Path,
    *,
    add: bytes | None = None,
    remove: str = "",
    mention: Sequence[str] = (),
    forget: Sequence[str] = (),
    timeout_s: float = 120.0,  # the child may query the model hub
) -> ChangeOutcome:
    """Update the repository, in a child process, which imports the catalog and the families: a second or two.

    Raise ChangeRefused if the change cannot be made.
    """
    change = ["--add"] if add is not None else [f"--remove={remove}"] if remove else []
    change += [f"--mention={name}" for name in mention] + [f"--forget={name}" for name in forget]
    command = [sys.executable, "-P", "-c", PROGRAM, str(data_dir), *change]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    # serving.json has all settings; ignore any sie.yaml.
    environment[FILE_VARIABLE] = os.devnull
    try:
        done = subprocess.run(
            command, input=add or b"", stdout=subprocess.PIPE, env=environment, timeout=timeout_s, check=True
        )
        raw: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as exc:
        raise ServerError(f"reading the model files took longer than {timeout_s:g} s") from exc
    except (subprocess.CalledProcessError, ValueError) as exc:
        said = exc.stdout.decode(errors="replace") if isinstance(exc, subprocess.CalledProcessError) else ""
        raise ServerError(said or "the model files could not be read; the controller's log has the details") from exc
    outcome = ChangeOutcome(**raw)
    if outcome.refused:
        raise ChangeRefused(outcome.refused, outcome.reason)
    return outcome


SIE_ID = re.compile(r"""^\s*["']?sie_id["']?\s*:\s*["']?([\w./-]+)""", re.MULTILINE)

# Directories of an absolute path, not of a URL or a relative path.
DIRECTORIES = re.compile(r"""(?<![\w:/.~-])~?(?:/[^/\s:,;'"()]+)*/(?=[^/\s])""")


def unserved(problems: Mapping[str, str]) -> dict[str, str]:
    """Map each model's name to why it is not served, a sentence that names no directory of the server.

    `problems` are those of Changes, by source.
    """
    return {name_of(source): for_clients(source, problem) for source, problem in problems.items()}


def name_of(source: str) -> str:
    """Name of the model that a wrong file describes; if the file does not give it, derived from the file's name.

    >>> name_of("/nowhere/my__model.yaml"), name_of("my__model"), name_of("/nowhere/m.yaml: profiles.fast")
    ('my/model', 'my/model', 'm.fast')
    """
    if not is_model_file(source):
        return sie_name(source)
    path, _, profile = source.partition(": profiles.")
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = SIE_ID.search(file.read(200_000))
    except OSError:
        found = None
    name = found[1] if found else sie_name(Path(path).stem)
    return f"{name}.{profile}" if profile else name


def for_clients(source: str, problem: str) -> str:
    """First line of a problem, without directories of the server.

    >>> for_clients("/a/b.yaml", "/a/b.yaml: dim: must be 64, as in /srv/my-model (given 65)")
    'b.yaml: dim: must be 64, as in my-model (given 65)'
    """
    line = problem.partition("\n")[0].replace(f"{Path(file_of(source)).parent}/", "")
    return DIRECTORIES.sub("", line)[:300]
