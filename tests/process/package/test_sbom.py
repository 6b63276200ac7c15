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

LICENCES = {
    "torch": "Apache-2.0 AND",
    "transformers": "Apache 2.0 License",  # in the package's own words, no identifier of SPDX
    "tokenizers": "License :: OSI Approved :: Apache Software License",
    "httptools": "MIT",
}


def run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stderr


def test_the_bill_of_materials_lists_the_packages_of_the_environment_and_of_the_system(tmp_path):
    if shutil.which("dpkg-query") is None:
        pytest.skip("dpkg-query is missing: not a Debian")
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "os-release").write_text('PRETTY_NAME="Debian"\nVERSION_ID="12"\nID=debian\n')
    options = ("--environment", sys.prefix, "--system", tmp_path)
    run(sys.executable, ROOT / "docker" / "make-sbom", *options, tmp_path / "sbom.cdx.json")
    text = (tmp_path / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    about = json.loads(text)["metadata"]["component"]
    expected = ("container", "sie-triton", metadata.version("sie-triton"))
    assert (about["type"], about["name"], about["version"]) == expected
    components = {each["name"]: each for each in json.loads(text)["components"]}
    for package in metadata.distributions(path=[str(Path(pytest.__file__).parents[1])]):
        assert components[package.name]["version"] == package.version
    for name, licence in LICENCES.items():
        assert any(each.startswith(licence) for each in licences(components[name])), name
    purl = PackageURL.from_string(components["libc6"]["purl"])
    assert (purl.type, purl.namespace, purl.name, purl.version) == ("deb", "debian", "libc6", "2.36-9+deb12u14")
    assert purl.qualifiers == {"arch": "amd64", "distro": "debian-12"}
    assert "nano" not in components


def licences(component: dict) -> set[str]:
    """Return the declared licences: expressions, identifiers of SPDX, or a package's own words."""
    names = {each.get("expression") for each in component.get("licenses", ())}
    names |= {each.get("license", {}).get(key) for each in component.get("licenses", ()) for key in ("id", "name")}
    return names - {None}
