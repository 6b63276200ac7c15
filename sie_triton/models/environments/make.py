"""Create and remove environments, one at a time."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import find_spec
from pathlib import Path

from sie_triton.errors import LoadError, ServerError, SettingsError
from sie_triton.models.environments.venv import PACKAGE, Venv, check_name, try_out
from sie_triton.system.host.private import private_directory

# Supported Python versions: those of the server, whose code runs in the environment.
PYTHON_VERSIONS = ((3, 11), (3, 12))
NAME, NUMPY = "sie-triton", "numpy>=1.26"


Say = Callable[[str], None]


def add(environments: Path, name: str, packages: Sequence[str], python: str = "", say: Say = lambda line: None) -> Venv:
    """Create an environment with `packages`, as pip takes them, and numpy, which every worker needs.

    `python` is the path of an interpreter; empty for the current one. `say` receives pip's output line by line.
    SettingsError or ServerError if the environment cannot be created; its directory is then removed.
    """
    with _alone(environments) as place_of:
        place = place_of(name)
        if (known := _recorded(place)) is not None:
            asked = " ".join(known.packages)
            raise SettingsError(f"environment {name}: already exists, with {asked}; run sie-triton env rm {name} first")
        python_version = version_of(python or sys.executable)
        made = datetime.now(UTC).isoformat(timespec="milliseconds")
        venv = Venv(place, tuple(map(_absolute_path, packages)), python, python_version, made)
        shutil.rmtree(place, ignore_errors=True)  # left over by an interrupted attempt
        try:
            _fill(venv, say)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        return venv


def remove(environments: Path, name: str) -> None:
    """Remove an environment; SettingsError if it does not exist."""
    with _alone(environments) as place_of:
        place = place_of(name)
        if not place.is_dir():
            there = ", ".join(names(environments)) or "none"
            raise SettingsError(f"environment {name}: does not exist in {environments}; existing ones: {there}")
        shutil.rmtree(place)


def names(environments: Path) -> list[str]:
    """Return the names of all environments, unusable ones included, sorted."""
    return sorted(path.name for path in environments.iterdir() if path.is_dir()) if environments.is_dir() else []


def sie_triton_version(venv: Venv) -> str:
    """Return the version of sie_triton in the environment; empty if it has none."""
    if venv.package.resolve() == PACKAGE:
        return _own_version()
    found = next(venv.site_packages.glob("sie_triton-*.dist-info"), None)
    return found.name.removeprefix("sie_triton-").removesuffix(".dist-info") if found else ""


def version_of(python: str) -> str:
    """Return the interpreter's version, like 3.12.1; SettingsError if it cannot run this package."""
    try:
        program = "import sys; print(*sys.version_info[:3], sep='.')"
        done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise SettingsError(f"--python={python}: cannot be run ({exc}); give the path of a Python interpreter") from exc
    found = done.stdout.strip()
    parts = tuple(int(part) for part in found.split(".") if part.isdecimal())
    low, high = PYTHON_VERSIONS
    if len(parts) != 3 or not low <= parts[:2] <= high:
        what = f"is Python {found}" if len(parts) == 3 else "is not a Python interpreter"
        raise SettingsError(f"--python={python}: {what}; a worker needs Python 3.{low[1]} to 3.{high[1]}")
    return found


@contextmanager
def _alone(environments: Path) -> Iterator[Callable[[str], Path]]:
    """Lock the directory of environments; yield a function that returns the path for a name.

    ServerError if another process holds the lock, or if the directory cannot be used.
    """

    def place_of(name: str) -> Path:
        try:
            return directory / check_name(name)
        except ValueError as exc:
            raise SettingsError(f"environment {name!r}: {exc}") from exc

    with ExitStack() as stack:
        try:
            directory = private_directory(environments)
            handle = os.open(directory, os.O_DIRECTORY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise ServerError(f"another sie-triton env is running in {environments}; wait until it is done") from exc
        except OSError as exc:
            raise ServerError(f"--environments-dir={environments} cannot be used: {exc}; choose another one") from exc
        yield place_of


def _recorded(place: Path) -> Venv | None:
    try:
        return Venv.read(place)
    except (OSError, ValueError):
        return None


def _absolute_path(package: str) -> str:
    """Return a path, with or without extras, as an absolute path; a package name stays as it is.

    >>> _absolute_path("numpy[x]>=2"), _absolute_path("./[x]") == f"{Path.cwd()}[x]"
    ('numpy[x]>=2', True)
    """
    path, bracket, extras = package.partition("[")
    return f"{Path(path).resolve()}{bracket}{extras}" if os.sep in path and Path(path).exists() else package


def _fill(venv: Venv, say: Say) -> None:
    """Create the venv, install its packages, and write the record last: an environment with a record is complete."""
    say("creating the venv")
    # Use the server's pip if there is one; installing pip into the venv takes seconds.
    pip, bare = [*venv.command, "-m", "pip"], []
    if find_spec("pip") is not None:
        pip, bare = [sys.executable, "-I", "-m", "pip", f"--python={venv.interpreter}"], ["--without-pip"]
    _run([venv.python or sys.executable, "-I", "-m", "venv", *bare, str(venv.directory)], say, "venv")
    _share_this_package(venv)
    _run([*pip, "--disable-pip-version-check", "--no-input", "install", NUMPY, *venv.packages], say, "pip install")
    try:
        try_out(venv)
    except LoadError as exc:
        raise ServerError(f"environment {venv.name}: no worker can run with {' '.join(venv.packages)}: {exc}") from exc
    venv.write()


def _share_this_package(venv: Venv) -> None:
    """Link the server's sie_triton into the venv, with metadata that make pip treat it as installed.

    So pip does not download another one for a package that depends on it. The metadata list its extras, and as the only
    other requirement numpy, since a worker needs nothing else.
    """
    venv.package.symlink_to(PACKAGE)
    own = _own_version()
    lines = ["Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {own}"]
    with suppress(PackageNotFoundError):
        needed = [each for each in requires(NAME) or [] if "extra ==" in each or each.startswith("numpy")]
        lines += [f"Provides-Extra: {extra}" for extra in metadata(NAME).get_all("Provides-Extra", [])]
        lines += [f"Requires-Dist: {each}" for each in needed]
    directory = venv.site_packages / f"sie_triton-{own}.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text("".join(f"{line}\n" for line in lines))


def _own_version() -> str:
    try:
        return version(NAME)
    except PackageNotFoundError:  # run from a source tree
        return "0"


def _run(command: Sequence[str], say: Say, what: str) -> None:
    """Run a command; ServerError with the last lines of its output if it fails."""
    last: deque[str] = deque(maxlen=15)
    silent, piped = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(
        command, stdin=silent, stdout=piped, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in filter(str.strip, process.stdout):
            last.append(line.rstrip())
            say(line.strip())
    if process.returncode:
        raise ServerError("\n".join([f"{what} ended with status {process.returncode}; its last lines:", *last]))
