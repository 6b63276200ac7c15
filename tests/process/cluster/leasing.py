"""A gateway's routes, and sidecars that move between pools as their process does."""

import asyncio
from contextlib import asynccontextmanager

import httpx

from sie_triton.cluster.gateway.backend import QueueBackend
from sie_triton.cluster.gateway.pool_routes import PoolRoutes
from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.sidecar.sidecar import Sidecar
from sie_triton.doors.app import application
from sie_triton.doors.endpoint import Door
from tests.process.cluster.conftest import Cluster


@asynccontextmanager
async def http(queue: Queue, settings, token: str = ""):
    """A client of the routes of a gateway."""
    door = Door(settings, QueueBackend(settings, queue))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(application(door, [PoolRoutes(queue, settings).all]))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        yield client


class Worker:
    """A sidecar that moves between pools as its process does."""

    def __init__(self, cluster: Cluster, name: str, **more: object) -> None:
        self._cluster, self.name, self._more = cluster, name, more
        self.sidecar: Sidecar
        self.triton = None
        self.pools: list[str] = []

    async def run(self) -> None:
        pool = "default"
        while True:
            self.pools.append(pool)
            made = self._cluster.sidecar(self.name, at=pool, **self._more)
            async with made[0] as self.sidecar:
                self.triton = made[1]
                await self.sidecar.should_move.wait()
                await self.sidecar.drain()
                pool = self.sidecar.best_pool


@asynccontextmanager
async def workers(cluster: Cluster, *names: str, **more: object):
    made = [Worker(cluster, name, **more) for name in names]
    tasks = [asyncio.create_task(each.run()) for each in made]
    try:
        yield made
    finally:
        while not all(task.done() for task in tasks):  # asyncio.wait_for of Python 3.11 may lose a cancellation
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.1)


async def state(client: httpx.AsyncClient, name: str = "eval") -> str:
    return (await client.get(f"/v1/pools/{name}")).json()["status"]["state"]
