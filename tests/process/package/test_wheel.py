"""The wheel, built from the sdist: its compiled code computes on a machine without a compiler what is compiled here."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from packaging import tags
from packaging.utils import parse_wheel_filename

from sie_triton.server.stub_forking.stubs import REAL_STUB
from sie_triton.system.host.speed import processor_flags
from sie_triton.system.native.builds import (
    BUILDS,
    BUILT,
    HOOK,
    INSTALL,
    PREPARED,
    PRIVACY,
    STAND_IN,
    VECTORS,
    VNNI,
)
from tests.support import compiled_code

pytest.importorskip("setuptools", minversion="77", reason="pyproject.toml needs setuptools 77 to build a wheel")

ROOT = Path(__file__).parents[3]
NAMED = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
COMPUTES = Path(compiled_code.__file__)
NO_COMPILER = {"PATH": ""}


def build(kind: str, source: Path, environment: dict[str, str] | None = None) -> Path:
    """Return the sdist or the wheel that setuptools' build backend makes of `source`, without a network."""
    made = source.parent / kind
    made.mkdir()
    code = f"from setuptools.build_meta import build_{kind} as build; build({str(made)!r})"
    run([sys.executable, "-c", code], cwd=source, env=os.environ | (environment or {}))
    (file,) = made.iterdir()
    return file


def run(command: list[str], **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the sdist contains."""
    copy = tmp_path_factory.mktemp("source") / "copy"
    shutil.copytree(ROOT / "sie_triton", copy / "sie_triton", ignore=shutil.ignore_patterns("__pycache__"))
    for name in NAMED:
        shutil.copy(ROOT / name, copy)
    shutil.unpack_archive(build("sdist", copy), copy.parent)
    (unpacked,) = copy.parent.glob("sie_triton-*")
    return unpacked


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    return build("wheel", source)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, with the modes that pip gives them."""
    directory = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            Path(archive.extract(info, directory)).chmod(info.external_attr >> 16)
    return directory


def of_the_wheel(installed: Path, tmp_path: Path, code: str, *arguments: object) -> str:
    """Run Python code with the wheel's package, an empty cache and no compiler."""
    environment = os.environ | NO_COMPILER | {"PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return run([sys.executable, "-c", code, *map(str, arguments)], cwd=tmp_path, env=environment)


def test_the_tag_fits_every_python_3_on_this_machine(wheel):
    _, _, _, found = parse_wheel_filename(wheel.name)
    (tag,) = found
    assert (tag.interpreter, tag.abi) == ("py3", "none")
    assert re.fullmatch(rf"manylinux_2_\d+_{os.uname().machine}", tag.platform)
    assert tag in set(tags.sys_tags())


def test_the_wheel_has_a_file_for_each_level_and_its_sources(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    compiled = {name for name in names if name.startswith(f"sie_triton/{BUILT}/")}
    assert compiled == {f"sie_triton/{BUILT}/{each.file_name(level)}" for each in BUILDS for level in each.levels}
    sources = [path for each in BUILDS for folder in {p.parent for p in each.sources} for path in folder.glob("*.[ch]")]
    assert {str(path.relative_to(ROOT)) for path in sources} <= set(names)


def test_without_a_compiler_the_wheel_is_built_without_compiled_code(source, tmp_path):
    copy = shutil.copytree(source, tmp_path / "copy", ignore=shutil.ignore_patterns("build"))
    wheel = build("wheel", copy, NO_COMPILER)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if f"{BUILT}/" in name]


@pytest.mark.parametrize("level", [VNNI, *VECTORS], ids=lambda level: level.name)
def test_the_kernels_of_each_level_compute_what_those_compiled_here_do(installed, tmp_path, level):
    if missing := level.flags - processor_flags():
        pytest.skip(f"this processor lacks {', '.join(sorted(missing))}")
    info = tmp_path / "cpuinfo"
    info.write_text(f"flags : {' '.join(level.flags)}\n")
    told = json.loads(of_the_wheel(installed, tmp_path, COMPUTES.read_text(), info, tmp_path / "found.npz"))
    assert told == {
        "package": str(installed / "sie_triton"),
        "kernels": f"{level.name}, from the wheel",
        "muvera": f"{min(level, VECTORS[0], key=[VNNI, *VECTORS][::-1].index).name}, from the wheel",
    }
    found, expected = np.load(tmp_path / "found.npz"), compiled_code.results()
    assert found.keys() == {*expected} - ({"int8"} if level != VNNI else set())
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


USES = """
import json, sys
from sie_triton.system.native.builds import KERNELS, MUVERA
from sie_triton.system.native.loading import kernels_in_use, library
print(json.dumps([kernels_in_use("cpu"), library(MUVERA) is not None]))
"""


def test_kernels_of_other_sources_are_not_used(installed, tmp_path):
    changed = shutil.copytree(installed, tmp_path / "changed")
    with (changed / "sie_triton" / "engines" / "torch" / "native" / "vector.h").open("a") as header:
        header.write("\n")
    kernels, has_muvera = json.loads(of_the_wheel(changed, tmp_path, USES))
    assert kernels == f"none, so PyTorch's own are used, which are slower; {INSTALL}"
    assert has_muvera


PUTS = """
import sys
from pathlib import Path
from sie_triton.system.native.builds import HOOK, PREPARED, PRIVACY, STAND_IN
from sie_triton.system.native.loading import put
for build in (HOOK, PREPARED, PRIVACY, STAND_IN):
    assert put(build, Path(sys.argv[1], build.name))
"""


def test_the_hook_and_the_programs_of_stubs_need_no_compiler(installed, tmp_path):
    of_the_wheel(installed, tmp_path, PUTS, tmp_path)
    for each in (HOOK, PREPARED, PRIVACY):
        assert (tmp_path / each.name).read_bytes().startswith(b"\x7fELF")
    ended = subprocess.run([tmp_path / STAND_IN.name], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, f"{tmp_path / REAL_STUB}: No such file or directory\n")
