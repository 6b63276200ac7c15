"""Commands and the config service at a model file of a model that generates text."""

import pytest
from click.testing import CliRunner

from sie_triton.cli import cli
from sie_triton.cluster.config.api import check
from sie_triton.errors import CatalogError
from sie_triton.settings import read_settings

FILE = "sie_id: org/chat\ntasks: {generate: {}}\nprofiles: {default: {endpoint: 'http://gpu-host:8000'}}\n"


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "chat.yaml").write_text(FILE)
    return tmp_path


def run(*command):
    return CliRunner().invoke(cli, ["models", *command], catch_exceptions=False)


def test_the_file_is_listed_with_its_endpoint(directory):
    assert run("ls", "--models-dir", str(directory)).output.split() == [
        "org/chat",
        "generate",
        "forwarded",
        "to",
        "http://gpu-host:8000",
    ]


def test_the_file_is_shown_with_its_endpoint(directory):
    shown = run("show", "org/chat", "--models-dir", str(directory)).output
    assert "http://gpu-host:8000, as org/chat" in shown
    assert "maximum length" not in shown


def test_the_file_is_valid_without_a_look_at_weights_or_endpoint(directory):
    checked = run("check", str(directory))
    assert (checked.exit_code, checked.output) == (0, "1 files, 1 valid\n")


def test_a_cluster_refuses_the_file():
    with pytest.raises(CatalogError, match=r"tasks\.generate: cannot be served by a cluster"):
        check(FILE.encode(), read_settings())
