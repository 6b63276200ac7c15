"""A check that processes of a test leave nothing behind."""

import gc

import psutil
import pytest

from tests.support.controller import wait_for


@pytest.fixture
def nothing_is_left():
    """Check that no child, zombie or additional descriptor is left."""
    me = psutil.Process()
    before, descriptors = set(me.children()), me.num_fds()
    yield
    assert set(me.children()) <= before
    gc.collect()
    wait_for(lambda: me.num_fds() <= descriptors)
