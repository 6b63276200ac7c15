"""A door before the server that all tests share."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from benchmarks.ports import free_ports
from sie_triton import SIEClient
from sie_triton.server.companions import doors, wait_for_door
from sie_triton.settings import Settings
from tests.conftest import Running
from tests.support import one_thread  # noqa: F401


@contextmanager
def opened(settings: Settings, **given: object) -> Iterator[str]:
    """Yield the URL of a door process with these settings, overridden by `given`."""
    changed = settings.model_copy(update={"door_port": free_ports(1)[0], **given})
    with doors(changed, {}):
        wait_for_door(changed)
        yield f"http://{changed.host}:{changed.door_port}"


@pytest.fixture(scope="session")
def door(server: Running) -> Iterator[str]:
    """URL of the door."""
    with opened(server.settings) as url:
        yield url


@pytest.fixture(scope="session")
def http(door: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=door, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def ours(server: Running) -> Iterator[SIEClient]:
    """Client of Triton itself, beside those of the door."""
    with SIEClient(server.grpc) as client:
        yield client
