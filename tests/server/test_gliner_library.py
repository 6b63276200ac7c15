"""A checkpoint with an unsupported head, run by its library in the environment that the error names; minutes to
install, so not in CI.
"""

import shlex

import pytest
from click.testing import CliRunner

from benchmarks.library_comparison import served
from sie_triton import InputError
from sie_triton.cli import cli
from sie_triton.models.families.gliner_library import PACKAGES
from tests.support.gliners import LABELS, TEXTS, assert_same, save_gliner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_entities_through_the_library(tmp_path, minilm_directory):
    library = save_gliner(tmp_path / "gliner", minilm_directory, num_rnn_layers=0, fuse_layers=True)
    packages = [package if package != "torch" else "torch==2.13.0+cpu" for package in shlex.split(PACKAGES)]
    environments = tmp_path / "environments"
    done = CliRunner().invoke(cli, ["env", "add", "gliner", *packages, f"--environments-dir={environments}"])
    assert done.exit_code == 0, done.output
    file = {
        "weights_path": str(tmp_path / "gliner" / "model"),
        "tasks": {"extract": {}},
        "profiles": {"default": {"adapter_path": "gliner_library"}},
    }
    with served(tmp_path, "test/fused", file, environments_dir=environments) as client:
        found = client.extract("test/fused", TEXTS, LABELS, threshold=0.5)
        for text, each in zip(TEXTS, found, strict=True):
            (expected,) = library.inference([text], list(LABELS), threshold=0.5)
            assert_same(each, expected)
        assert any(each["entities"] for each in found)
        with pytest.raises(InputError, match="labels: is empty"):
            client.extract("test/fused", TEXTS[0], [])
