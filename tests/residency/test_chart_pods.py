"""The Pods that the chart renders, as containers: answers, a killed and a drained worker under load, scaling queries.

They need podman and the CPU image; `scripts/try-chart` builds it and runs these tests.
"""

import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from openai import OpenAI

from sie_triton import SIEClient
from tests.conftest import MINILM
from tests.support.chart import NAMESPACE
from tests.support.killing import Clients
from tests.support.pods import IMAGE, Pods, has_image
from tests.support.prometheus import Prometheus, prometheus

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not has_image(), reason=f"podman has no {IMAGE}; run scripts/try-chart"),
]

WORKERS = "sie-worker-default"
HTTP, GRPC, CONFIG = 28080, 28001, 28081
READY_S = 180


def ports_of(worker: int) -> dict[str, str]:
    """Return the ports of a worker: all Pods share the machine's network here."""
    names = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT", "CONTROLLER_PORT", "WORKER_METRICS_PORT")
    return {f"SIE_{name}": str(28100 + 10 * worker + i) for i, name in enumerate(names)}


VALUES = {
    "image": {"repository": "localhost/sie-triton", "tag": "cpu", "pullPolicy": "Never"},
    "nats": {"image": IMAGE, "imagePullPolicy": "Never", "user": 10001, "persistence": {"enabled": False}},
    "gateway": {"httpPort": HTTP, "grpcPort": GRPC, "autoscaling": {"enabled": True}},
    "config": {"port": CONFIG},
    "autoscaling": {"enabled": True},
    "workers": {
        "common": {
            "resources": {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
            "env": {"SIE_ENGINE": "torch"},
        },
        "pools": {"default": {"minReplicas": 0}},
    },
}


def wait_for(condition, pods: Pods, name: str) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline, pods.logs(name)
        time.sleep(0.2)


def workers() -> list[str]:
    """Return the workers that are ready in the eyes of the gateway."""
    found = httpx.get(f"http://127.0.0.1:{HTTP}/health").json()["workers"]
    return sorted(each["name"] for each in found if each["healthy"])


def answers(port: int, path: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """NATS, a config service and a gateway, without a worker."""
    root = tmp_path_factory.mktemp("pods")
    for each in (root, *root.parents[:2]):
        each.chmod(0o755)  # the containers' user reads its volumes
    with Pods(root, VALUES) as running:
        running.play("sie-nats")
        wait_for(lambda: answers(8222, "/healthz"), running, "sie-nats-0")
        running.play("sie-config")
        running.play("sie-gateway")
        wait_for(lambda: answers(CONFIG, "/readyz"), running, "sie-config-0")
        wait_for(lambda: answers(HTTP, "/readyz"), running, "sie-gateway-0")
        yield running


def start(pods: Pods, *numbers: int) -> None:
    for number in numbers:
        pods.play(WORKERS, number, **ports_of(number))
    for number in numbers:
        wait_for(lambda number=number: f"{WORKERS}-{number}" in workers(), pods, f"{WORKERS}-{number}")


def wanted(pods: Pods, client: Prometheus) -> dict[str, list[float]]:
    """Return what each rule of the chart's ScaledObjects asks for, in workers; nothing if a query has no answer."""
    found: dict[str, list[float]] = {}
    for scaled in (each for each in pods.objects if each["kind"] == "ScaledObject"):
        for trigger in scaled["spec"]["triggers"]:
            rule = trigger["metadata"]
            if not (values := client.query(rule["query"])):
                return {}
            (value,) = values
            found.setdefault(scaled["metadata"]["name"], []).append(value / float(rule["threshold"]))
    return found


def test_pods_serve_scale_drain_and_die_without_a_lost_request(pods, tmp_path):
    gateway = f"http://127.0.0.1:{HTTP}"
    with prometheus(tmp_path, [f"127.0.0.1:{HTTP}"], labels={"namespace": NAMESPACE}) as client:
        # From zero: a request is told to wait, and a rule wants a worker.
        refused = httpx.post(f"{gateway}/v1/encode/{MINILM}", json={"items": [{"text": "a"}]})
        assert (refused.status_code, refused.json()["detail"]["code"]) == (503, "PROVISIONING")
        assert refused.headers["Retry-After"]
        wait_for(lambda: wanted(pods, client).get(WORKERS) == [0, 1, 0, 0], pods, "sie-gateway-0")
        start(pods, 0, 1)

        expected = SIEClient(f"grpc://127.0.0.1:{GRPC}", controller_url="").encode(MINILM, ["a"])[0]["dense"]
        found = httpx.post(f"{gateway}/v1/encode/{MINILM}", json={"items": [{"text": "a"}]}).json()["items"]
        assert np.allclose(found[0]["dense"]["values"], expected, atol=1e-5)
        vector = OpenAI(base_url=f"{gateway}/v1", api_key="none").embeddings.create(model=MINILM, input="a").data[0]
        assert np.allclose(vector.embedding, expected, atol=1e-5)

        with Clients([f"127.0.0.1:{GRPC}"], [MINILM.replace("/", "__")], 32) as clients:
            clients.more(100)
            wait_for(lambda: wanted(pods, client).get(WORKERS, [0])[0] > 0, pods, "sie-gateway-0")
            pods.kill(f"{WORKERS}-0")
            clients.more(100)
            start(pods, 0)  # as a StatefulSet does
            clients.more(100)
            pods.drain(f"{WORKERS}-1")
            clients.more(100)
        assert (clients.wrong, dict(clients.failures)) == ([], {})
        wait_for(lambda: workers() == [f"{WORKERS}-0"], pods, "sie-gateway-0")
        print(f"{clients.num_right} answers, the slowest after {clients.slowest_s:.1f} s")
