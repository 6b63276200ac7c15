"""A server with nearly all of the reference's variables set at once."""

import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import yaml
from sentence_transformers import SentenceTransformer

from benchmarks.ports import free_ports
from sie_triton.contract.names import triton_name
from sie_triton.models.weights.cluster import Cluster
from sie_triton.records.status import records_of
from tests.conftest import model_file, tiny_model_file
from tests.server.test_serve import port_flags, sie
from tests.support.controller import wait_for
from tests.support.counted_server import read_lines
from tests.support.models import save_bert, without_weights
from tests.support.openai_endpoint import Endpoint
from tests.support.towers import save_clip

NAMES = ("dense", "apart", "burst", "cold", "preloaded", "deberta", "clip", "missing", "fetched")
DENSE, APART, BURST, COLD, PRELOADED, DEBERTA, CLIP, MISSING, FETCHED = (f"test/{name}" for name in NAMES)
REMOTE, REMOTE_TOO = "test/remote", "test/remote-too"
# Models that the filter and the bundle leave out.
FILTERED, UNBUNDLED = "other/dense", "test/unbundled"

MAX_REQUESTS, MAX_OF_MODEL, MAX_OF_BATCH = 8, 6, 2
NUM_WORKERS, NUM_IMAGE_WORKERS = 3, 1
# Repositories in the cluster cache: one that the server fetches, and one that is on its disk and unused for years.
NEW, OLD = "org/new", "org/old"
VARIABLES = {
    "SIE_DEVICE": "cpu",
    "SIE_MODEL_FILTER": "test/*",
    "SIE_GPU_TYPE": "l4",
    "SIE_GPU_COUNT": "2",
    "SIE_BUNDLE": "nightly",
    "SIE_PRELOAD_MODELS": PRELOADED,
    "SIE_HF_FALLBACK": "false",
    "SIE_DISK_CACHE_ENABLED": "false",
    "SIE_DISK_PRESSURE_THRESHOLD_PERCENT": "0.000001",
    "SIE_MAX_BATCH_REQUESTS": str(MAX_OF_BATCH),
    "SIE_MAX_BATCH_WAIT_MS": "1000",
    "SIE_MAX_CONCURRENT_REQUESTS": str(MAX_REQUESTS),
    "SIE_MAX_REQUESTS_PER_MODEL": str(MAX_OF_MODEL),
    "SIE_PREPROCESSOR_WORKERS": str(NUM_WORKERS),
    "SIE_IMAGE_WORKERS": str(NUM_IMAGE_WORKERS),
    "SIE_ATTENTION_BACKEND": "sdpa",
    "SIE_DEFAULT_COMPUTE_PRECISION": "bfloat16",
    "SIE_INSTRUMENTATION": "true",
    "SIE_LOG_JSON": "true",
    "SIE_LOG_REQUESTS": "true",
}


@dataclass(frozen=True)
class Served:
    """The server; `reference` computes the vectors of DENSE in float32."""

    grpc: str
    control: str
    door: str
    root: Path
    endpoint: Endpoint
    reference: SentenceTransformer
    lines: list[dict[str, Any]]

    def record(self, model: str, stage: str = "inference") -> dict[str, int]:
        (record,) = records_of(self.root / "data/status", triton_name(model), stage)
        return dict(record)

    def on_disk(self, repo: str) -> list[Path]:
        return list((self.root / f"disk/models--{repo.replace('/', '--')}/snapshots").rglob("*.safetensors"))

    def models(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(urllib.request.urlopen(f"{self.control}/v1/models").read())
        return found


@contextmanager
def set_server(root: Path, tiny: Path, tokenizer: Path) -> Iterator[Served]:
    """Run the server; `tiny`: directory of a small model, `tokenizer`: of MiniLM."""
    (root / "models").mkdir()
    with Endpoint(lambda items: [[1.0, *[0.0] * 63]] * len(items)) as endpoint:
        files_of_models = files(root, tiny, tokenizer, endpoint)
        for model, text in files_of_models.items():
            (root / "models" / f"{triton_name(model)}.yaml").write_text(text)
        names = [name for name in files_of_models if name != UNBUNDLED]
        (root / "models/bundles").mkdir()
        (root / "models/bundles/nightly.yaml").write_text(yaml.safe_dump({"models": names}))
        ports = free_ports(5)
        places = {
            "SIE_MODELS_DIR": f"file://{root / 'models'}",
            "SIE_DATA_DIR": str(root / "data"),
            "SIE_LOCAL_CACHE": str(root / "disk"),
            "SIE_CLUSTER_CACHE": f"file://{root / 'cluster'}",
        }
        for number, repo in enumerate((NEW, OLD)):
            Cluster(places["SIE_CLUSTER_CACHE"]).push(repo, f"{number:040}", tiny, ["main"], lambda _: None)
        warmed = sie("cache", "warm", OLD, **places)
        assert warmed.wait(60) == 0, warmed.communicate()
        for record in (root / "disk").rglob("*.used"):
            os.utime(record, (0, 0))
        process = sie("serve", *port_flags(ports), **VARIABLES, **places)
        try:
            assert process.stdout is not None
            lines: list[dict[str, Any]] = []
            reading = Thread(target=read_lines, args=(process, lines))
            reading.start()
            wait_for(lambda: any(line["message"] == "SIE ready" for line in lines) or process.poll() is not None)
            assert process.poll() is None, lines[-20:]
            _, grpc, _, control, door = (f"127.0.0.1:{port}" for port in ports)
            reference = SentenceTransformer(str(tiny), device="cpu")
            yield Served(grpc, f"http://{control}", f"http://{door}", root, endpoint, reference, lines)
        finally:
            process.terminate()
            process.wait(60)
            reading.join()
            process.communicate()


def files(root: Path, tiny: Path, tokenizer: Path, endpoint: Endpoint) -> dict[str, str]:
    """Return the model files of the server."""
    deberta = save_bert(root / "deberta", tokenizer, "deberta")
    save_clip(root / "clip", tokenizer)
    clip = model_file(CLIP, root / "clip", "clip", {"encode": {"dense": {"dim": 32}}}, inputs=("text", "image"))
    small = without_weights(save_bert(root / "whole", tokenizer, "qwen3"), root / "remote")
    local = {name: tiny_model_file(name, tiny) for name in (DENSE, APART, BURST, COLD, PRELOADED, FILTERED, UNBUNDLED)}
    dense = {"encode": {"dense": {"dim": 64}}}
    remote = {name: endpoint.model_file(name, small, "sentence_transformer", dense) for name in (REMOTE, REMOTE_TOO)}
    of_hub = {
        name: tiny_model_file(name, tiny).replace(f"weights_path: {tiny}", f"hf_id: {repo}")
        for name, repo in ((MISSING, "org/is-in-no-cache"), (FETCHED, NEW))
    }
    return {**local, **remote, **of_hub, DEBERTA: tiny_model_file(DEBERTA, deberta), CLIP: clip}
