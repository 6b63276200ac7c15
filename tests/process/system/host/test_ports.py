"""Ports that no other user may take while a program of the server starts again."""

import os
import socket
import subprocess
import sys
from contextlib import closing

import pytest

from benchmarks.ports import free_ports
from sie_triton.errors import ServerError
from sie_triton.system.host.ports import reserved
from tests.support.controller import wait_for

LOOPBACK = "127.0.0.1"
OTHER = 65534  # another user of the machine

# What another user may try, in a program of its own.
LISTENS = """
import os, socket, sys
user, port, option = map(int, sys.argv[1:])
os.setuid(user)
with socket.socket() as listener:
    if option:
        listener.setsockopt(socket.SOL_SOCKET, option, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
"""


def can_listen(port: int, option: int, user: int) -> bool:
    command = [sys.executable, "-c", LISTENS, *map(str, (user, port, option))]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("option", [0, socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_another_user_cannot_listen_on_a_reserved_port(option):
    (port,) = free_ports(1)
    assert can_listen(port, option, OTHER)
    with reserved(LOOPBACK, [port]):
        assert not can_listen(port, option, OTHER)
    assert can_listen(port, option, OTHER)


def test_a_program_of_this_user_shares_the_port_and_gets_all_connections():
    (port,) = free_ports(1)
    with reserved(LOOPBACK, [port]):
        for _ in range(2):  # the program is started again
            with socket.create_server((LOOPBACK, port), reuse_port=True) as listener:
                for _ in range(20):
                    with socket.create_connection((LOOPBACK, port), timeout=10), closing(listener.accept()[0]):
                        pass


def test_a_port_on_which_another_program_listens_is_refused():
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} on {LOOPBACK} cannot be used"), reserved(LOOPBACK, [port]):
            pass


def test_a_port_with_connections_that_are_closing_is_reserved_later():
    with socket.create_server((LOOPBACK, 0)) as earlier:
        port = earlier.getsockname()[1]
        client = socket.create_connection((LOOPBACK, port))
        accepted = earlier.accept()[0]
    with reserved(LOOPBACK, [port], retry_s=0.01):
        socket.create_server((LOOPBACK, port)).close()  # not reserved yet
        client.close()  # first, so that the earlier program's end keeps nothing
        accepted.close()

        def is_reserved() -> bool:
            try:
                socket.create_server((LOOPBACK, port)).close()
            except OSError:
                return True
            return False

        wait_for(is_reserved)
