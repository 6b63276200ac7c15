"""Model files by the dozen, in front of a real tritonserver."""

import re

import pytest

from benchmarks.ports import free_ports
from sie_triton import LoadError, SIEClient
from tests.server.test_serve import port_flags, sie
from tests.support import reference_files


def run(*arguments, status=0):
    """Run a command and return its standard output, or standard error if it is to fail."""
    process = sie(*arguments)
    out, err = process.communicate(timeout=120)
    assert process.returncode == status, err
    return err if status else out


def test_sie_model_files_are_served_unmodified(tmp_path, tiny_directory):
    """SIE's public models have no weights here: each is ready, cold, and names what is missing.

    Beside them a model comes and goes by the commands that a user types.
    """
    reference_files.write(tmp_path / "models")
    ports = free_ports(4)
    arguments = [f"--models-dir={tmp_path / 'models'}", f"--data-dir={tmp_path / 'data'}", "--no-hf-fallback"]
    process = sie("serve", *arguments, *port_flags(ports))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "SIE ready\n"
        with SIEClient(f"127.0.0.1:{ports[1]}") as client:
            names = {reference_files.sie_id(name) for name in reference_files.SERVED} | {"org/bge-m3.flag"}
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
    finally:
        process.terminate()
        _, text = process.communicate(timeout=30)
    for name in reference_files.NOT_SERVED:
        assert re.search(rf"not served: .*org__{name}\.yaml: ", text.replace("\n", " "))
