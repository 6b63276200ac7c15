"""Worker environments: made, listed, removed, and what is wrong with them."""

import fcntl
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from sie_triton.cli import cli
from sie_triton.contract.spec import Runtime
from sie_triton.errors import LoadError, SettingsError, SIEError
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.environments import make
from sie_triton.models.environments.venv import PACKAGE, RECORD, Venv, find
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server import preflight
from sie_triton.settings import read_settings
from tests.conftest import model_file
from tests.support.environments import ARRAYS, SITE_PACKAGES, SOURCE, env, loader_of, spec_of
from tests.support.models import save_frames

BAD_NAMES = ["../x", ".hidden", "-x", "", "a" * 101, "a\n"]


def in_it(venv: Venv, program: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [*venv.command, "-c", program, *arguments]
    return subprocess.run(command, env=venv.variables(), capture_output=True, text=True, check=True, **options)


def refused(*arguments: str, environments: Path) -> str:
    """Return the error of a `sie-triton env` command."""
    result = CliRunner().invoke(
        cli, ["env", *arguments[:1], f"--environments-dir={environments}", "--", *arguments[1:]]
    )
    assert isinstance(result.exception, SIEError)
    return str(result.exception)


# --- made


def test_an_environment_has_the_requested_packages_and_none_of_the_server(arrays):
    program = "import array_api_strict, arrays_family, numpy, sie_triton; print(numpy.__version__, sie_triton.__file__)"
    numpy_version, where = in_it(arrays, program).stdout.split()
    assert numpy_version.startswith("2.")
    assert Path(where).resolve().parent == PACKAGE
    with pytest.raises(subprocess.CalledProcessError):
        in_it(arrays, "import yaml")
    needed = in_it(
        arrays, "import importlib.metadata as m; print(m.version('sie-triton'), m.requires('sie-triton'))"
    ).stdout
    assert needed.startswith(f"{version('sie-triton')} ['numpy>=1.26', 'aiohttp")
    assert "'torch" in needed  # with the extra `server`
    assert "tritonclient" not in needed
    assert arrays.packages == (f"{SOURCE}[worker]",)


def test_nothing_is_left_of_one_that_fails(tmp_path):
    (tmp_path / "no.whl").write_text("")
    done = env("add", "x", str(tmp_path / "no.whl"), environments=tmp_path / "environments")
    assert done.returncode == 2
    assert "error: pip install ended with status 1; its last lines:\n" in done.stderr
    assert "no.whl is not a valid wheel filename" in done.stderr
    assert list((tmp_path / "environments").iterdir()) == []


def test_adding_an_existing_environment_is_refused(arrays, environments):
    said = f"environment {ARRAYS}: already exists, with {arrays.packages[0]}; run sie-triton env rm"
    assert said in refused("add", ARRAYS, "numpy", environments=environments)
    assert find(environments, ARRAYS) == arrays


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/nowhere/python", "--python=/nowhere/python: cannot be run"),
        ("/bin/true", "--python=/bin/true: is not a Python interpreter; a worker needs Python 3.11 to 3.12"),
        ("old", "is Python 3.10.2; a worker needs Python 3.11 to 3.12"),
    ],
)
def test_a_python_that_cannot_be_used(tmp_path, python, said):
    (tmp_path / "old").write_text("#!/bin/sh\necho 3.10.2\n")
    (tmp_path / "old").chmod(0o755)
    path = str(tmp_path / python) if python == "old" else python
    with pytest.raises(SettingsError, match=said):
        make.add(tmp_path / "environments", "x", ["numpy"], path)
    assert make.PYTHON_VERSIONS == preflight.PYTHON_VERSIONS


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("command", ["add", "rm"])
def test_a_name_is_no_path(tmp_path, name, command):
    more = ["numpy"] if command == "add" else []
    said = f"environment {name!r}: must be 1 to 100 of the letters"
    assert said in refused(command, name, *more, environments=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_concurrent_env_commands_are_refused(tmp_path):
    handle = os.open(tmp_path, os.O_DIRECTORY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert "another sie-triton env is running" in refused("rm", "x", environments=tmp_path)
    os.close(handle)
    assert "environment x: does not exist in" in refused("rm", "x", environments=tmp_path)


def test_environments_are_listed_and_removed(tmp_path, empty):
    environments = empty.directory.parent
    (environments / "interrupted").mkdir()
    save_frames(tmp_path / "letters")
    tasks = {"encode": {"dense": {"dim": 8}}}
    (tmp_path / "models").mkdir()
    for name, of in (("a", "empty"), ("b", "gone")):
        content = model_file(f"test/{name}", tmp_path / "letters", "frames_family:Frames", tasks)
        (tmp_path / "models" / f"{name}.yaml").write_text(f"{content}environment: {of}\n")
    done = subprocess.run(
        [sys.executable, "-m", "sie_triton.cli", "env", "ls", f"--models-dir={tmp_path / 'models'}"],
        env={**os.environ, "SIE_ENVIRONMENTS_DIR": str(environments), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    row = next(line for line in done.stdout.splitlines() if "test/a" in line)
    assert [cell.strip() for cell in row.split("│")][1:5] == [
        "empty",
        empty.python_version,
        version("sie-triton"),
        "linked[all]",
    ]
    assert (
        "environment empty: its Python cannot run a worker (ModuleNotFoundError: No module named 'numpy')"
        in done.stdout
    )
    assert "environment interrupted: is incomplete; create it: sie-triton env add interrupted" in done.stdout
    assert "environment gone: does not exist, but is needed by test/b" in done.stdout
    for name in ("empty", "interrupted"):
        make.remove(environments, name)
    assert list(environments.iterdir()) == []


# --- found


def broken_record(venv: Venv) -> None:
    (venv.directory / RECORD).write_text("{}")


def another_package(venv: Venv) -> None:
    venv.package.unlink()
    venv.package.symlink_to(venv.directory)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda venv: shutil.rmtree(venv.directory), "does not exist in .*; create it: sie-triton env add empty"),
        (lambda venv: (venv.directory / RECORD).unlink(), "is incomplete"),
        (broken_record, "is incomplete"),
        (lambda venv: (venv.directory / "bin/python").unlink(), "its interpreter .*/bin/python is missing; recreate"),
        (lambda venv: venv.package.unlink(), "it uses the sie_triton in .*, but this server runs that in"),
        (another_package, "it uses the sie_triton in .*, but this server runs that in .*; recreate it: "),
        (lambda venv: venv.directory.chmod(0o777), "can be written by other users"),
    ],
)
def test_a_damaged_environment_is_reported_when_a_model_is_loaded(empty, tmp_path, spoil, said):
    assert find(empty.directory.parent, "empty") == empty
    spoil(empty)
    weights = tmp_path / "none"  # looked for later: they may have to be fetched
    loader = loader_of(spec_of(weights, "empty", empty.directory.parent, "frames_family:Frames"), tmp_path)
    with pytest.raises(LoadError, match=f"^environment empty: .*{said}") as caught:
        loader.order(1, 1)
    assert caught.value.reason == "dependency"


def test_a_broken_environment_names_the_command_to_recreate_it(tmp_path):
    venv = Venv(tmp_path / "x", ("numpy>=2", "b"), "/usr/bin/python3.12", "3.12.1", "")
    said = "recreate it: sie-triton env rm x && sie-triton env add --python /usr/bin/python3.12 x 'numpy>=2' b"
    assert str(venv.broken("it is old")) == f"environment x: it is old; {said}"


def test_rendering_warns_about_an_unusable_environment(empty, tmp_path):
    (tmp_path / "models").mkdir()
    content = model_file(
        "test/letters", save_frames(tmp_path / "letters"), "frames_family:Frames", {"encode": {"dense": {"dim": 8}}}
    )
    (tmp_path / "models" / "letters.yaml").write_text(f"{content}environment: empty\n")
    settings = read_settings(models_dir=tmp_path / "models", environments_dir=empty.directory.parent, device="cpu")
    (warning,) = write_repository(tmp_path / "repository", settings, [], hook=False)
    assert warning.startswith("warning: test/letters: requests fail until this is fixed: environment empty: its Python")
    (empty.site_packages / "linked.pth").write_text(str(SITE_PACKAGES))
    assert write_repository(tmp_path / "repository", settings, [], hook=False) == []


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_model_file_names_no_path(name, tmp_path):
    content = yaml.safe_load(model_file("test/m", tmp_path, "sentence_transformer", {"encode": {"dense": {"dim": 8}}}))
    with pytest.raises(ValueError, match=r"environment\n.*must be 1 to 100 of the letters"):
        ModelConfig.model_validate({**content, "environment": name})
    assert ModelConfig.model_validate({**content, "environment": "x-1.y"}).resolve(Runtime()).environment == "x-1.y"
    with pytest.raises(ValueError, match="letters"):
        find(tmp_path, name)


def test_tritons_libpython_is_removed_from_a_workers_library_path(tmp_path, arrays, monkeypatch):
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "libpython3.11.so.1.0").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path / 'python'}:/opt/cuda:")
    assert arrays.variables()["LD_LIBRARY_PATH"] == "/opt/cuda"
