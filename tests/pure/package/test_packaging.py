"""Versions of Python and of packages that are stated in several places agree."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from setuptools import find_packages

from sie_triton.server import preflight
from sie_triton.system.native import builds

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
CONSTRAINTS = [Requirement(line) for line in LINES if line]
INSTALLED = {
    package.metadata["Name"].lower().replace("_", "-"): package.version for package in metadata.distributions()
}


def extra(name: str) -> set[str]:
    return {Requirement(line).name for line in PROJECT["optional-dependencies"][name]}


@pytest.mark.parametrize("minor", range(9, 15))
def test_pythons(minor, monkeypatch):
    fits = f"3.{minor}.0" in SpecifierSet(PROJECT["requires-python"])
    monkeypatch.setattr(preflight.sys, "version_info", (3, minor, 0))
    problems = [line for line in preflight.check_python() if line.startswith(f"Python 3.{minor} is not supported")]
    assert (not problems) == fits == (minor in (11, 12))
    assert (f"Programming Language :: Python :: 3.{minor}" in PROJECT["classifiers"]) == fits


def test_python_problems_name_the_debian_package_to_install(monkeypatch):
    monkeypatch.setattr(preflight.sys, "version_info", (3, 11, 2))
    monkeypatch.setattr(preflight, "shared_libpython", lambda: None)
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    problems = [*preflight.check_python(), *preflight.check_venv()]
    packages = [package for line in problems for package in re.findall(r"\(Debian, Ubuntu: apt install (.+?)\)", line)]
    assert packages == ["libpython3.11", "python3.11-venv"]


def test_readme_names_what_debian_needs():
    (line,) = re.findall(r"`apt install (.+?)`", (ROOT / "README.md").read_text())
    (compiler,) = re.findall(r"apt install (.+?)\)", builds.INSTALL)
    assert {"python3-venv", "libpython3.11", *compiler.split()} <= set(line.split())


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: constraint.name)
def test_this_environment_keeps_the_constraints(constraint):
    version = INSTALLED.get(constraint.name)
    if version is None:
        pytest.skip(f"{constraint.name} is not installed")
    assert version in constraint.specifier


def test_only_the_embedded_triton_needs_an_old_numpy():
    assert extra("embedded") == {"numpy", "nvidia-pytriton"}
    assert not extra("server") & extra("embedded")
    assert {"torch", "transformers"} <= extra("server") & {each.name for each in CONSTRAINTS}


def test_the_wheel_has_all_packages():
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    packaged = set(find_packages(ROOT, include=found["include"]))
    assert packaged == {
        ".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "sie_triton").rglob("__init__.py")
    }
