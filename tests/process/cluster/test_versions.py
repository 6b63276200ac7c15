"""Gateways, sidecars and config services of an earlier commit and of this one share a queue, as during an upgrade.

The parts are processes, and nats-server is real; one double stands for the servers beside the sidecars.
"""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.ports import free_ports
from sie_triton.cluster.permissions import CONFIG, GATEWAY, PASSWORDS, SIDECAR
from tests.server.test_serve import sie
from tests.support.controller import wait_for
from tests.support.http_stub import NO_HEADERS, Asked, Reply, answering
from tests.support.in_cluster import is_ready
from tests.support.nats import NatsServer

ROOT = Path(__file__).parents[3]

# The commit before an upgrade: that of the latest release, else one of the same branch.
RELEASE, EARLIER = "v[0-9]*", "HEAD~20"

# Versions, each also the pool of its sidecar.
VERSIONS = BEFORE, NOW = "before", "now"

# Small requests, and one that goes through the payload store.
TEXTS = [*(b"text %d" % i for i in range(6)), bytes(range(256)) * 36_000]


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Double of Triton that answers with the reversed input."""

    def ServerReady(self, request, context):
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelStatistics(self, request, context):
        return service_pb2.ModelStatisticsResponse(model_stats=[service_pb2.ModelStatistics(name="t__m")])

    def ModelInfer(self, request, context):
        return service_pb2.ModelInferResponse(raw_output_contents=[request.raw_input_contents[0][::-1]])


def controller(_: Asked) -> Reply:
    """Answer as a controller with one model in memory."""
    model = {"model": "t/m", "state": "resident", "memory_bytes": 1000, "idle_s": 1.0}
    found = {"models": [model], "memory": {"limit_bytes": 9000, "used_bytes": 1000}}
    return 200, json.dumps(found).encode(), NO_HEADERS


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """Run both doubles; yield their ports."""
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with ThreadPoolExecutor(8) as threads, answering(controller) as controller_port:
        triton = grpc.server(threads, options=limits)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Triton(), triton)
        port = triton.add_insecure_port("127.0.0.1:0")
        triton.start()
        try:
            yield port, controller_port
        finally:
            triton.stop(None).wait()


def git(*arguments: str) -> bytes:
    """Return the output of git, empty if it fails."""
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Path]:
    """The directory of the package of each version."""
    commit = git("describe", "--tags", "--abbrev=0", f"--match={RELEASE}", "HEAD~1").decode().strip() or EARLIER
    if not (archive := git("archive", commit, "sie_triton")):
        pytest.skip(f"this clone does not hold {commit}: a shallow one, or a directory without .git")
    (tmp_path / BEFORE).mkdir()
    subprocess.run(["tar", "--extract", f"--directory={tmp_path / BEFORE}"], input=archive, check=True)
    return {BEFORE: tmp_path / BEFORE, NOW: ROOT}


@contextmanager
def running(tree: Path, nats: NatsServer, user: str, *arguments: str) -> Iterator[None]:
    """Run a command of the package in `tree` as a user of the queue."""
    of_queue = [f"--nats-url={nats.url}", f"--nats-user={user}", f"--nats-password={nats.passwords[PASSWORDS[user]]}"]
    process = sie(*arguments, *of_queue, PYTHONPATH=str(tree))
    try:
        yield
    finally:
        process.terminate()
        process.communicate()


def answer(channel: grpc.Channel, pool: str, text: bytes) -> bytes:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
    request = service_pb2.ModelInferRequest(model_name="t__m", inputs=[tensor], raw_input_contents=[text])
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    found: bytes = stub.ModelInfer(request, timeout=60, metadata=[("x-sie-pool", pool)]).raw_output_contents[0]
    return found


def has_answer(channel: grpc.Channel, pool: str) -> bool:
    try:
        return bool(answer(channel, pool, b"a"))
    except grpc.RpcError:
        return False


@pytest.mark.timeout(600)
def test_each_gateway_gets_right_answers_from_each_sidecar(trees, tmp_path):
    with NatsServer(tmp_path) as nats, server() as (triton, controller), ExitStack() as stack:
        store = f"--payload-store-url={(tmp_path / 'payloads').as_uri()}"
        config, *ports = free_ports(7)

        def config_service(version: str) -> None:
            flags = [f"--config-port={config}", f"--data-dir={tmp_path / 'config'}"]
            services.enter_context(running(trees[version], nats, CONFIG, "config-service", *flags))
            wait_for(partial(is_ready, f"http://127.0.0.1:{config}"))

        services = stack.enter_context(ExitStack())
        config_service(BEFORE)
        channels = {}
        for version, (door, of_grpc, metrics) in zip(VERSIONS, (ports[:3], ports[3:]), strict=True):
            flags = [f"--door-port={door}", f"--grpc-port={of_grpc}", f"--data-dir={tmp_path / f'gateway-{version}'}"]
            stack.enter_context(running(trees[version], nats, GATEWAY, "gateway", store, f"--pool={version}", *flags))
            flags = [f"--grpc-port={triton}", f"--controller-port={controller}", f"--worker-metrics-port={metrics}"]
            flags += [f"--data-dir={tmp_path / version}", f"--pool={version}", f"--worker-id={version}"]
            flags += ["--batcher-max-batch-requests=1", store]
            stack.enter_context(running(trees[version], nats, SIDECAR, "sidecar", *flags))
            limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            channels[version] = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{of_grpc}", options=limits))
        for of_config in VERSIONS:
            if of_config == NOW:
                services.close()
                config_service(NOW)
            for gateway, pool in product(VERSIONS, VERSIONS):
                wait_for(partial(has_answer, channels[gateway], pool))
                texts = TEXTS if of_config == BEFORE else TEXTS[:-1]  # payloads are no matter of config services
                with ThreadPoolExecutor(4) as clients:
                    found = list(clients.map(partial(answer, channels[gateway], pool), texts))
                assert found == [text[::-1] for text in texts], (of_config, gateway, pool)
