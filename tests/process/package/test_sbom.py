"""`docker/make-sbom`, by which an image states its packages, writes that of the environment that runs the tests."""

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("cyclonedx_py", reason="docker/make-sbom needs cyclonedx-bom")

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = Path(__file__).parents[3]
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u14

Package: nano
Status: deinstall ok config-files
Architecture: amd64
Version: 7.2-1
"""


def run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> str:
    if shutil.which("dpkg-query") is None:
        pytest.skip("dpkg-query is missing: not a Debian")
    system = tmp_path_factory.mktemp("system")
    (system / "status").write_text(STATUS)
    (system / "os-release").write_text('PRETTY_NAME="Debian"\nVERSION_ID="12"\nID=debian\n')
    options = ("--environment", sys.prefix, "--system", system)
    run(sys.executable, ROOT / "docker" / "make-sbom", *options, system / "sbom.cdx.json")
    return (system / "sbom.cdx.json").read_text()


@pytest.fixture(scope="module")
def components(document) -> dict[str, dict]:
    return {each["name"]: each for each in json.loads(document)["components"]}


def licences(component: dict) -> set[str]:
    """Return the declared licences: expressions, identifiers of SPDX, or a package's own words."""
    names = {each.get("expression") for each in component.get("licenses", ())}
    names |= {each.get("license", {}).get(key) for each in component.get("licenses", ()) for key in ("id", "name")}
    return names - {None}


def test_it_is_valid_cyclonedx_about_a_container(document):
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    about = json.loads(document)["metadata"]["component"]
    assert (about["type"], about["name"], about["version"]) == (
        "container",
        "sie-triton",
        metadata.version("sie-triton"),
    )


def test_each_installed_package_is_listed_with_its_version(components):
    for package in metadata.distributions(path=[str(Path(pytest.__file__).parents[1])]):
        assert components[package.name]["version"] == package.version


@pytest.mark.parametrize(
    ("name", "licence"),
    [
        ("torch", "Apache-2.0 AND"),
        ("transformers", "Apache 2.0 License"),  # in the package's own words, no identifier of SPDX
        ("tokenizers", "License :: OSI Approved :: Apache Software License"),
        ("httptools", "MIT"),
        ("nvidia-pytriton", "Apache 2.0"),
        ("sie-triton", "Apache-2.0"),
    ],
)
def test_licences_are_those_that_the_packages_declare(components, name, licence):
    assert any(each.startswith(licence) for each in licences(components[name]))


def test_packages_of_the_system_are_listed_if_they_are_installed(components):
    purl = PackageURL.from_string(components["libc6"]["purl"])
    assert (purl.type, purl.namespace, purl.name, purl.version) == ("deb", "debian", "libc6", "2.36-9+deb12u14")
    assert purl.qualifiers == {"arch": "amd64", "distro": "debian-12"}
    assert "nano" not in components
