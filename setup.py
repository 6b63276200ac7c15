"""Compiles our C code into the wheel. pyproject.toml says everything else about the package.

The wheel fits every Python 3: the code is loaded by ctypes. Its tag names the oldest glibc that the code runs with, so
that pip refuses it elsewhere. Without a C compiler the wheel has no compiled code and fits every platform.
"""

import platform
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))

from sie_triton.system.native.builds import BUILDS, BUILT, PACKAGE, compile_build


class BuildPackage(build_py):
    """Copy the package, and compile our C code beside it; an editable installation compiles it when it is used."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self._compile(Path(self.build_lib, PACKAGE.name, BUILT))

    def _compile(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for build in BUILDS:
            for level in build.levels:
                if not compile_build(build, level, directory / build.file_name(level)):
                    self.warn(f"{build.name} for {level.name} cannot be compiled; a machine with a C compiler does it")


class BuildWheel(bdist_wheel):
    """Name the platform of the compiled code in the wheel's tag."""

    def get_tag(self) -> tuple[str, str, str]:
        compiled = list(Path(self.bdist_dir, PACKAGE.name, BUILT).glob("*"))
        return ("py3", "none", platform_of(compiled)) if compiled else super().get_tag()


def platform_of(compiled: Sequence[Path]) -> str:
    """Return the platform's tag: manylinux_2_34_x86_64 if the newest symbol is of glibc 2.34; linux_… without glibc."""
    versions = [int(n) for path in compiled for n in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())]
    return f"{f'manylinux_2_{max(versions)}' if versions else 'linux'}_{platform.machine()}"


setup(cmdclass={"build_py": BuildPackage, "bdist_wheel": BuildWheel})
