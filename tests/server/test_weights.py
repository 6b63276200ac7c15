"""A store of a running server: model files, and weights from a cluster cache without a hub."""

import numpy as np
import psutil
from sentence_transformers import SentenceTransformer

from sie_triton import SIEClient
from sie_triton.models.weights.cluster import Cluster
from tests.conftest import tiny_model_file
from tests.server.test_serve import serving
from tests.support.controller import wait_for
from tests.support.object_store import CREDENTIALS


def test_model_files_of_a_store_are_served_and_followed(s3, tmp_path, tiny_directory):
    """The weights come from the cluster cache in the same store."""
    commit, weights = "c" * 40, tiny_directory / "model.safetensors"
    Cluster(s3.url).push("org/tiny", commit, tiny_directory, ["main"], lambda _: None)
    of_hub = tiny_model_file("test/first", tiny_directory).replace(f"weights_path: {tiny_directory}", "hf_id: org/tiny")
    s3.write("files/first.yaml", of_hub.encode())
    options = [f"--cluster-cache={s3.url}", f"--local-cache={tmp_path / 'disk'}", "--no-hf-fallback"]
    options += [f"--models-dir={s3.url}/files"]
    with serving(tmp_path / "data", *options) as (process, address), SIEClient(address) as client:
        assert client.list_models() == ["test/first"]
        dense = client.encode("test/first", "hello", timeout=120)["dense"]
        secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        assert secret not in (tmp_path / "data" / "serving.json").read_text()
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert not any(secret in argument for each in family for argument in each.cmdline())
        assert s3.sent < 2 * weights.stat().st_size
        s3.write("files/second.yaml", tiny_model_file("test/second", tiny_directory).encode())
        wait_for(lambda: client.list_models() == ["test/first", "test/second"])
        np.testing.assert_allclose(client.encode("test/second", "hello", timeout=120)["dense"], dense, atol=1e-5)
    np.testing.assert_allclose(dense, SentenceTransformer(str(tiny_directory)).encode("hello"), atol=1e-5)
    snapshot = tmp_path / "disk" / "models--org--tiny" / "snapshots" / commit
    assert (snapshot / "model.safetensors").read_bytes() == weights.read_bytes()
