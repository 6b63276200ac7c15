"""Model files by the dozen, in front of a real tritonserver."""

import re

import pytest

from sie_triton import LoadError, SIEClient
from sie_triton.bench.compare import free_ports
from tests import reference_files
from tests.server.test_serve import port_flags, sie


def test_sies_own_files_are_served_as_they_are(tmp_path):
    """Its public models have no weights here: each is ready, cold, and says what is missing."""
    reference_files.write(tmp_path / "models")
    ports = free_ports(4)
    arguments = [f"--models-dir={tmp_path / 'models'}", f"--data-dir={tmp_path / 'data'}", "--no-hf-fallback"]
    process = sie("serve", *arguments, *port_flags(ports))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "SIE ready\n"
        with SIEClient(f"127.0.0.1:{ports[1]}") as client:
            names = {f"org/{name}" for name in reference_files.SERVED} | {"org/bge-m3.flag"}
            assert set(client.list_models()) == names
            for name in ("org/bge-m3.flag", "org/gritlm"):
                with pytest.raises(LoadError, match=r"org/\S+ is not in the local cache, .* \(SIE_HF_FALLBACK\)"):
                    client.encode(name, "hello")
    finally:
        process.terminate()
        _, text = process.communicate(timeout=30)
    for name in reference_files.PLANNED:
        assert re.search(rf"not served: .*org__{name}\.yaml: ", text.replace("\n", " "))
