"""SIE's own model files before a real tritonserver. All of them: tests/pure/models/catalog/test_reference_files.py."""

import re
import subprocess
from pathlib import Path

import httpx
import pytest

from benchmarks.ports import free_ports
from sie_triton import LoadError, SIEClient
from tests.conftest import tiny_model_file
from tests.server.test_serve import port_flags, sie, started
from tests.support import reference_files


def run(*arguments, status=0):
    """Run a command and return its standard output, or standard error if it is to fail."""
    process = sie(*arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == status, err
    return err if status else out


def test_sie_model_files_are_served_unmodified(tmp_path, tiny_directory):
    """SIE's public models have no weights here: each is ready, cold, and names what is missing.

    Beside them a model comes and goes by the commands that a user types, and a wrong file fails only its model.
    """
    served = ("gritlm", "bge-m3", "reranker", "clip")
    reference_files.write(tmp_path / "models", served)
    ports = free_ports(5)
    arguments = [f"--models-dir={tmp_path / 'models'}", f"--data-dir={tmp_path / 'data'}", "--no-hf-fallback"]
    with started(*arguments, *port_flags(ports)) as process, SIEClient(f"127.0.0.1:{ports[1]}") as client:
        names = {reference_files.sie_id(name) for name in served} | {"org/bge-m3.flag"}
        assert set(client.list_models()) == names
        for name in ("org/bge-m3.flag", "org/gritlm"):
            with pytest.raises(LoadError, match=r"org/\S+ is not in the local cache, .* \(SIE_HF_FALLBACK\)"):
                client.encode(name, "hello")
        running = [f"--data-dir={tmp_path / 'data'}", f"--controller-port={ports[3]}"]
        run("models", "init", str(tiny_directory), "--name=my/tiny", f"--output={tmp_path / 'tiny.yaml'}")
        assert run("models", "add", str(tmp_path / "tiny.yaml"), *running) == "my/tiny: added\n"
        assert client.encode("my/tiny", "hello")["dense"].shape == (64,)
        refused = run("models", "add", str(tmp_path / "models" / "org__nemo-v1.yaml"), *running, status=2)
        assert "llama-nemoretriever-colembed-3b-v1 is not served by this version" in refused
        assert run("models", "rm", "my/tiny", *running) == "my/tiny: removed\n"
        assert set(client.list_models()) == names
        assert "my/tiny is not served" in run("models", "rm", "my/tiny", *running, status=2)
        told = told_of_a_wrong_file(process, tmp_path / "models", tiny_directory, ports)
        assert set(client.list_models()) == names
    for name in reference_files.NOT_SERVED:
        assert re.search(rf"not served: .*org__{name}\.yaml: ", told.replace("\n", " "))


def told_of_a_wrong_file(process: subprocess.Popen[str], models: Path, tiny: Path, ports: list[int]) -> str:
    """Write a wrong file; launcher, controller and door say why. Return the launcher's lines."""
    (models / "wrong.yaml").write_text(tiny_model_file("my/wrong", tiny, dim=65))
    reason = "tasks.encode.dense.dim: must be 64"
    line, told = f"not served: {models}/wrong.yaml: {reason}, as in {tiny} (given 65)\n", ""
    assert process.stderr is not None
    while not told.endswith(line):
        told += process.stderr.readline()
        assert process.poll() is None
    assert line in run("status", f"--controller-port={ports[3]}")
    answer = httpx.post(f"http://127.0.0.1:{ports[4]}/v1/encode/my/wrong", json={"items": ["a"]}, timeout=60)
    message = answer.json()["detail"]["message"]
    assert answer.status_code == 404
    assert message.startswith(f"model: my/wrong is not served: wrong.yaml: {reason}")
    assert "/" not in message.removeprefix("model: my/wrong")
    return told
