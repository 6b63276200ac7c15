"""A gateway's process answers what it has taken before it ends, and stores what no other user can read."""

import asyncio
import subprocess
import sys
from contextlib import suppress

import httpx
import numpy as np
import pytest
from tritonclient.grpc import InferInput, aio
from tritonclient.utils import InferenceServerException

from benchmarks.ports import free_ports
from sie_triton.cluster.permissions import GATEWAY
from sie_triton.server.companions import DRAIN_S, resolved
from tests.process.cluster.conftest import MODEL, in_cluster, until


def large() -> InferInput:
    array = np.array([b"x" * 8 * 1024**2], object)
    tensor = InferInput("text", array.shape, "BYTES")
    tensor.set_data_from_numpy(array)
    return tensor


@in_cluster()
async def test_calls_of_http_and_grpc_are_answered_before_the_process_ends(cluster, tmp_path):
    """One of them is larger than a message of the queue, and waits in a directory."""
    http, grpc = free_ports(2)
    store = {"payload_store_url": str(tmp_path / "objects")}
    _, triton = await cluster.worker("w", **store)
    settings = cluster.server.user(cluster.settings(door_port=http, grpc_port=grpc, **store), GATEWAY)
    process = subprocess.Popen([sys.executable, "-m", "sie_triton.cluster.gateway.run"], env=resolved(settings))
    may_end = triton.hold()
    try:
        async with httpx.AsyncClient(timeout=30) as client:
            while True:
                with suppress(httpx.HTTPError):
                    if (await client.get(f"http://127.0.0.1:{http}/readyz")).status_code == 200:
                        break
                await asyncio.sleep(0.05)
            body = {"items": [{"text": "a"}]}
            by_http = asyncio.create_task(client.post(f"http://127.0.0.1:{http}/v1/encode/t/m", json=body))
            kserve = aio.InferenceServerClient(f"127.0.0.1:{grpc}")
            by_grpc = asyncio.create_task(kserve.infer(MODEL, [large()], request_id="by grpc"))
            await until(lambda: len(triton.seen) == 2)
            modes = [path.stat().st_mode & 0o77 for path in (tmp_path / "objects").rglob("*")]
            assert modes
            assert not any(modes)
            process.terminate()
            while True:  # it takes no further ones
                with suppress(httpx.HTTPError):
                    await client.get(f"http://127.0.0.1:{http}/healthz", headers={"Connection": "close"})
                    await asyncio.sleep(0.05)
                    continue
                break
            late = aio.InferenceServerClient(f"127.0.0.1:{grpc}")
            with pytest.raises(InferenceServerException):
                await late.is_server_live()
            await late.close()
            may_end.set()
            assert (await by_grpc).get_response().id == "by grpc"
            assert (await by_http).status_code in (200, 500)  # the double's answer has no vector
            await asyncio.to_thread(process.wait, DRAIN_S)
            await kserve.close()
    finally:
        process.kill()
