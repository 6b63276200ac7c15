"""A worker environment: a venv, named like its directory, with a record of how it was created.

Its `sie_triton` is a link to that of the server that created it, so that both ends of a channel always run the same
code, even after an upgrade or an edit.
"""

import json
import os
import re
import shlex
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import sie_triton
from sie_triton.errors import LoadError
from sie_triton.system.host.private import private_directory

PACKAGE = Path(sie_triton.__file__).resolve().parent
RECORD = "environment.json"
NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)

# Statement that fails if a worker cannot run in the environment.
TRIAL = "import sie_triton.pipeline.worker.messages"


def check_name(name: str) -> str:
    """Return `name`; ValueError if it is no valid name of an environment, which is also that of its directory."""
    if not NAME.fullmatch(name):
        raise ValueError("must be 1 to 100 of the letters a to z, digits, _, . and -, and must not begin with . or -")
    return name


@dataclass(frozen=True, slots=True)
class Venv:
    """An environment."""

    directory: Path
    packages: tuple[str, ...]  # arguments given to pip
    python: str  # the requested interpreter; empty for the server's own
    python_version: str  # like 3.12.1
    made: str  # time of creation, which tells environments apart that were recreated

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def interpreter(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def command(self) -> tuple[str, ...]:
        """Command that starts its Python in isolated mode, which ignores PYTHONPATH and the working directory."""
        return str(self.interpreter), "-I"

    @property
    def site_packages(self) -> Path:
        minor = ".".join(self.python_version.split(".")[:2])
        return self.directory / "lib" / f"python{minor}" / "site-packages"

    @property
    def package(self) -> Path:
        """Directory of the environment's sie_triton."""
        return self.site_packages / sie_triton.__name__

    def broken(self, what: str, more: str = "") -> LoadError:
        """Return a LoadError with the commands that recreate the environment, with the packages `more` added."""
        python = ["--python", self.python] if self.python else []
        add = shlex.join(["sie-triton", "env", "add", *python, self.name, *self.packages])
        remedy = f"sie-triton env rm {self.name} && {add} {more}".rstrip()
        return LoadError(f"environment {self.name}: {what}; recreate it: {remedy}", "dependency")

    def variables(self) -> dict[str, str]:
        """Return the environment variables of its processes: ours, without the directories of Triton's libpython."""
        directories = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        kept = [each for each in directories if each and not any(Path(each).glob("libpython3*.so*"))]
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(kept)}

    def write(self) -> None:
        fields = {name: value for name, value in asdict(self).items() if name != "directory"}
        (self.directory / RECORD).write_text(json.dumps(fields, indent=1) + "\n")

    @classmethod
    def read(cls, directory: Path) -> "Venv":
        """Read an environment's record; OSError or ValueError if it is missing or incomplete."""
        text = (directory / RECORD).read_text()
        try:
            fields = json.loads(text)
            return cls(directory, **{**fields, "packages": tuple(fields["packages"])})
        except (ValueError, LookupError, TypeError, RecursionError) as exc:
            raise ValueError(f"{directory / RECORD} is not the record of an environment") from exc


def find(environments: Path, name: str) -> Venv:
    """Return the environment of this name; LoadError, with a remedy, if it is incomplete or has another sie_triton."""
    place = environments / check_name(name)
    try:
        venv = Venv.read(place)
        private_directory(place)
    except PermissionError as exc:
        raise LoadError(f"environment {name}: {exc}", "dependency") from exc
    except (OSError, ValueError) as exc:
        state = "is incomplete" if place.is_dir() else f"does not exist in {environments}"
        remedy = f"sie-triton env add {name} PACKAGE..."
        raise LoadError(f"environment {name}: {state}; create it: {remedy}", "dependency") from exc
    if not os.access(venv.interpreter, os.X_OK):
        raise venv.broken(f"its interpreter {venv.interpreter} is missing")
    if venv.package.resolve() != PACKAGE:
        raise venv.broken(f"it uses the sie_triton in {venv.package.resolve()}, but this server runs that in {PACKAGE}")
    return venv


def try_out(venv: Venv) -> Venv:
    """Return `venv`; LoadError if its Python cannot run a worker."""
    try:
        done = subprocess.run(
            [*venv.command, "-c", TRIAL], env=venv.variables(), capture_output=True, text=True, timeout=60.0
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise venv.broken(f"its Python cannot be run ({exc})") from exc
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise venv.broken(f"its Python cannot run a worker ({said[-1]})")
    return venv
