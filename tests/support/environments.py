"""Worker environments: one that is made as a user makes it, and others that are put together in a moment."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np

from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.errors import SettingsError
from sie_triton.models.environments import make
from sie_triton.models.environments.venv import Venv
from sie_triton.pipeline.stages.loader import Loader
from sie_triton.records.status import StatusWriter

ARRAYS = "arrays"  # the environment with the library that conflicts
FAMILY = "arrays_family:Arrays"
SOURCE = Path(__file__).parent / "arrays_family"
DIM = 8
TASKS = {"encode": {"dense": {"dim": DIM}, "multivector": {"dim": DIM}, "numpy_version": {"dim": 2}}}


def env(*arguments: str, environments: Path) -> subprocess.CompletedProcess[str]:
    """Run `sie-triton env`."""
    command = [sys.executable, "-m", "sie_triton.cli", "env", *arguments, f"--environments-dir={environments}"]
    return subprocess.run(command, capture_output=True, text=True)


def add_arrays(root: Path) -> Path:
    """Make the environment with `env add`, with another Python than this one if there is one; return the root of the
    environments.
    """
    done = env("add", ARRAYS, f"{SOURCE}[worker]", f"--python={other_python()}", environments=root / "environments")
    assert done.returncode == 0, done.stderr
    return root / "environments"


def other_python() -> str:
    for candidate in (*pythons(), sys.executable):
        with suppress(SettingsError):
            if candidate == sys.executable or not make.version_of(candidate).startswith(own_version()):
                return candidate
    raise AssertionError


def pythons() -> Iterator[str]:
    for minor in (12, 11):
        yield f"python3.{minor}"
        yield from map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))


def own_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}."


def linked(environments: Path, name: str, *site_packages: Path, python: str = sys.executable) -> Venv:
    """Make an environment of links to `site_packages`, without installing."""
    environments.mkdir(mode=0o700, exist_ok=True)
    subprocess.run([python, "-m", "venv", "--without-pip", environments / name], check=True)
    venv = Venv(environments / name, ("linked[all]",), "", make.version_of(python), "now")
    make._share_this_package(venv)
    (venv.site_packages / "linked.pth").write_text("".join(f"{path}\n" for path in site_packages))
    venv.write()
    return venv


def spec_of(directory: Path, environment: str, environments: Path, family: str = FAMILY) -> ModelSpec:
    dims = {"dense": 8, "multivector": 8, "numpy_version": 2} if family == FAMILY else {"dense": 8}
    runtime = Runtime("cpu", environments_dir=str(environments), max_sub_batch_cost=512)
    engine = "sie_triton.engines:Engine" if family == FAMILY else "frames_family.engine:NumpyEngine"
    weights = str(directory)
    return ModelSpec("m", weights, family, dims, 256, 512, engine=engine, environment=environment, runtime=runtime)


def loader_of(spec: ModelSpec, root: Path) -> Loader:
    spec = replace(spec, runtime=replace(spec.runtime, cache_dir=str(root / "cache")))
    return Loader(spec, "cpu", StatusWriter(root, "m", "inference", 0), Event(), lambda worker: None)


def declare(site: Path, family: str) -> None:
    """Let a package in `site`, a directory of sys.path, declare a family as pip would note it."""
    directory = site / f"{family.partition(':')[0]}-1.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {family.partition(':')[0]}\nVersion: 1\n")
    (directory / "entry_points.txt").write_text(f"[sie_triton.families]\nits = {family}\n")


# Where this process has its libraries.
SITE_PACKAGES = Path(np.__file__).parents[1]


def save_arrays(directory: Path) -> Path:
    """Save a model of the family in tests/support/arrays_family."""
    directory.mkdir()
    np.save(directory / "matrix.npy", np.random.default_rng(5).normal(size=(2, DIM)).astype(np.float32))
    return directory


def mapped(pid: int) -> str:
    """Return the files that a process has in its memory."""
    return Path(f"/proc/{pid}/maps").read_text()
