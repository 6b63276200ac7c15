"""`sie-triton cache`, with a stand-in of the hub and a real S3 server."""

import subprocess
import sys

import pytest
from click.testing import CliRunner, Result
from huggingface_hub import constants

from sie_triton.cli.main import cli
from sie_triton.models.weights.entries import entries
from tests.support.models import save_bert


@pytest.fixture
def run(hub, s3, tmp_path, minilm_directory, monkeypatch):
    """Run `sie-triton cache`; the hub has org/tiny, and the local cache is the directory `disk`."""
    hub.put("org/tiny", save_bert(tmp_path / "made", minilm_directory))
    monkeypatch.setenv("HF_HUB_CACHE", "")
    monkeypatch.setenv("SIE_CLUSTER_CACHE", s3.url)
    monkeypatch.setenv("SIE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, disk: str = "disk") -> Result:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", constants.HF_HUB_CACHE)
        monkeypatch.setenv("SIE_LOCAL_CACHE", str(tmp_path / disk))
        return CliRunner().invoke(cli, ["cache", *arguments], catch_exceptions=False)

    return run


def test_a_pushed_model_warms_another_machine_without_a_hub(run, hub, s3, tmp_path):
    assert "no models in s3://weights/cache" in run("ls", "--cluster").output
    pushed = run("push", "org/tiny")
    assert pushed.exit_code == 0, pushed.output
    commit = hub.repos["org/tiny"]["main"]
    assert f"org/tiny@{commit}: " in pushed.output
    assert commit in run("ls", "--cluster").output
    hub.asked.clear()
    warmed = run("warm", "--no-hf-fallback", "org/tiny", disk="other")
    assert warmed.exit_code == 0, warmed.output
    assert hub.asked == []
    for entry in (*entries(tmp_path / "disk"), *entries(tmp_path / "other")):
        assert (entry.repo, entry.commit) == ("org/tiny", commit)
        assert entry.last_use is not None
    again = run("push", "org/tiny")
    assert f"org/tiny@{commit}: 0.0 of" in again.output


def test_ls_shows_what_is_on_the_disk(run, hub, tmp_path):
    assert f"no models in {tmp_path}/disk; fetch one with: sie-triton cache warm" in run("ls").output
    run("warm", "org/tiny")
    (row,) = (line for line in run("ls").output.splitlines() if "org/tiny" in line)
    assert hub.repos["org/tiny"]["main"] in row
    assert "UTC" in row
    assert "yes" not in row


HOLD = """
import sys
from pathlib import Path
from sie_triton.models.weights.uses import Uses
uses = Uses()
uses.hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_rm_leaves_what_a_process_uses(run, tmp_path):
    run("warm", "org/tiny")
    (record,) = (tmp_path / "disk").rglob("*.used")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, record], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        refused = run("rm", "org/tiny")
        assert refused.exit_code == 1
        assert "in use, not removed; first: sie-triton evict org/tiny" in refused.output
        assert "yes" in run("ls").output
        process.kill()
    removed = run("rm", "org/tiny")
    assert removed.exit_code == 0
    assert not list((tmp_path / "disk").rglob("*.safetensors"))
    assert run("rm", "org/tiny").exit_code == 1


def test_rm_leaves_blobs_of_another_commit(run, hub, tmp_path, minilm_directory):
    run("warm", "org/tiny")
    first = hub.repos["org/tiny"]["main"]
    files = dict(hub.commits[first])
    files["tokenizer_config.json"] = files.get("tokenizer_config.json", b"{}") + b" "
    second = hub.put("org/tiny", files)
    run("warm", "--cluster-cache", "", "org/tiny")
    assert run("rm", f"org/tiny@{first}").exit_code == 0
    (left,) = entries(tmp_path / "disk")
    assert left.commit == second
    assert (left.directory / "model.safetensors").read_bytes() == files["model.safetensors"]


def test_rm_from_the_cluster(run, s3):
    run("push", "org/tiny")
    assert run("rm", "--cluster", "org/tiny").exit_code == 0
    assert s3.names() == []
    assert run("rm", "--cluster", "org/tiny").exit_code == 1


def test_faults_are_one_line(run, s3, monkeypatch):
    from sie_triton.errors import SIEError

    s3.away = True
    with pytest.raises(SIEError, match="the cluster cache cannot be used: s3://weights/cache") as told:
        run("ls", "--cluster")
    assert "of-the-test" not in str(told.value)
    with pytest.raises(SIEError, match="without credentials") as told:
        run("ls", "--cluster", "--cluster-cache", "s3://key:secret@bucket/x")
    assert "secret" not in str(told.value)
    monkeypatch.delenv("SIE_CLUSTER_CACHE")
    with pytest.raises(SIEError, match="name it with --cluster-cache"):
        run("push", "org/tiny")
