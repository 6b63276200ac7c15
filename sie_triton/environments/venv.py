"""One environment: a venv in a directory that is its name, with a record of what was asked for.

Its `sie_triton` is a link to that of the server which made it, so that both sides of a channel always have the same
code, whatever is released or edited meanwhile.
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
from sie_triton.private import private_directory

PACKAGE = Path(sie_triton.__file__).resolve().parent
RECORD = "environment.json"
NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)

# What a worker imports before it says anything; so long that may take.
TRIAL = "import sie_triton.worker.messages"
TRIAL_S = 60.0


def check_name(name: str) -> str:
    """`name`, which is that of a directory; ValueError where it cannot be."""
    if not NAME.fullmatch(name):
        raise ValueError("must be up to 100 letters a to z, digits, _, . and -, with no . or - first")
    return name


@dataclass(frozen=True, slots=True)
class Venv:
    """`packages` are as pip was given them, `python` the interpreter that was asked for, if any was.

    `python_version` is 3.12.1 or the like; `made` is when, and differs where the same was made again.
    """

    directory: Path
    packages: tuple[str, ...]
    python: str
    python_version: str
    made: str

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def interpreter(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def command(self) -> tuple[str, ...]:
        """What starts its Python: neither PYTHONPATH nor the working directory bring in what belongs to others."""
        return str(self.interpreter), "-I"

    @property
    def site_packages(self) -> Path:
        minor = ".".join(self.python_version.split(".")[:2])
        return self.directory / "lib" / f"python{minor}" / "site-packages"

    @property
    def package(self) -> Path:
        """The sie_triton that it has."""
        return self.site_packages / sie_triton.__name__

    def broken(self, what: str, more: str = "") -> LoadError:
        """With the command that makes it anew, and what it needs `more`."""
        python = ["--python", self.python] if self.python else []
        add = shlex.join(["sie-triton", "env", "add", *python, self.name, *self.packages])
        remedy = f"sie-triton env rm {self.name} && {add} {more}".rstrip()
        return LoadError(f"environment {self.name}: {what}; make it again: {remedy}", "dependency")

    def variables(self) -> dict[str, str]:
        """Environment of its processes: that of this one, less the libpython that Triton's stub was shown."""
        directories = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        kept = [each for each in directories if each and not any(Path(each).glob("libpython3*.so*"))]
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(kept)}

    def write(self) -> None:
        fields = {name: value for name, value in asdict(self).items() if name != "directory"}
        (self.directory / RECORD).write_text(json.dumps(fields, indent=1) + "\n")

    @classmethod
    def read(cls, directory: Path) -> "Venv":
        """OSError or ValueError where there is no whole record."""
        fields = json.loads((directory / RECORD).read_text())
        try:
            return cls(directory, **{**fields, "packages": tuple(fields["packages"])})
        except (KeyError, TypeError) as exc:
            raise ValueError(f"{directory / RECORD} is no record of an environment") from exc


def find(environments: Path, name: str) -> Venv:
    """That of this name, which looks whole and has this very sie_triton; LoadError says how to put it right."""
    place = environments / check_name(name)
    try:
        venv = Venv.read(place)
        private_directory(place)
    except PermissionError as exc:
        raise LoadError(f"environment {name}: {exc}", "dependency") from exc
    except (OSError, ValueError) as exc:
        state = "was not made to its end" if place.is_dir() else f"is not in {environments}"
        remedy = f"sie-triton env add {name} PACKAGE..."
        raise LoadError(f"environment {name}: {state}; make it: {remedy}", "dependency") from exc
    if not os.access(venv.interpreter, os.X_OK):
        raise venv.broken(f"its interpreter {venv.interpreter} is gone")
    if venv.package.resolve() != PACKAGE:
        raise venv.broken(f"it has the sie_triton of {venv.package.resolve()}, and this server is that of {PACKAGE}")
    return venv


def try_out(venv: Venv) -> Venv:
    """Itself, where its Python can run a worker; LoadError says what is wrong."""
    try:
        done = subprocess.run(
            [*venv.command, "-c", TRIAL], env=venv.variables(), capture_output=True, text=True, timeout=TRIAL_S
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise venv.broken(f"its Python cannot be run ({exc})") from exc
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise venv.broken(f"its Python cannot run a worker ({said[-1]})")
    return venv
