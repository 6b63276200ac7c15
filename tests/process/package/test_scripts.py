"""Scripts that take paths read them where the user stands, not in the repository."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"


@pytest.fixture
def clone(tmp_path) -> Path:
    """A repository whose environment is complete, and whose programs print their directory and arguments."""
    clone = tmp_path / "clone"
    shutil.copytree(SCRIPTS, clone / "scripts")
    (clone / "pyproject.toml").touch()
    (clone / "constraints.txt").write_text("torch==1\n")
    (clone / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "sie-triton"):
        program = clone / ".venv" / "bin" / name
        program.write_text('#!/bin/sh\necho "$PWD" "${SIE_PYTHON:-}" "$@"\n')
        program.chmod(0o755)
    for extra in ("server", "embedded", "demo", "onnx", "bench", "cluster", "dev"):
        (clone / ".venv" / f"installed-{extra}").touch()
    return clone


def printed(script: Path, directory: Path, *arguments: str, **variables: str) -> list[str]:
    environment = os.environ | variables
    done = subprocess.run([script, *arguments], cwd=directory, env=environment, capture_output=True, check=True)
    return done.stdout.decode().split()


def test_scripts_take_paths_where_the_user_stands_and_the_tests_run_in_the_repository(clone, tmp_path):
    for name in ("serve", "perf", "bench", "render", "fuzz", "gpu-check"):
        directory, *_, last = printed(clone / "scripts" / name, tmp_path, "./m/dense")
        assert (directory, last) == (str(tmp_path), "./m/dense"), name
    assert printed(clone / "scripts" / "render", tmp_path)[-2:] == ["--output", str(clone / "model_repository")]
    assert printed(clone / "scripts" / "test", tmp_path, "--collect-only")[0] == str(clone)


def test_the_interpreter_of_the_environment_is_named_where_the_user_stands(clone, tmp_path):
    (clone / ".venv" / "installed-dev").unlink()
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    (clone / ".venv" / "bin" / "python").unlink()
    done = subprocess.run(
        [clone / "scripts" / "test"],
        cwd=tmp_path,
        env=os.environ | {"SIE_PYTHON": "./python"},
        capture_output=True,
        text=True,
    )
    assert f"SIE_PYTHON={tmp_path}/python " in done.stderr
