"""A real nats-server for tests, which can be killed, stopped and started again with its store."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from sie_triton.cluster.up import as_user, free_ports, nats_config, nats_server, passwords
from sie_triton.settings import Settings

HOST = "127.0.0.1"


class NatsServer:
    """Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        (self.port,) = free_ports(1)
        self.url = f"nats://{HOST}:{self.port}"
        self.passwords = passwords()
        self._config = directory / "nats.conf"
        self.store = directory / "store"
        self._config.write_text(nats_config(HOST, self.port, str(self.store)))
        self._log = directory / "nats.log"

    def __enter__(self) -> "NatsServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def user(self, settings: Settings, name: str) -> Settings:
        """Return the settings of a part of a cluster that connects to this server as a user."""
        return as_user(settings.model_copy(update={"nats_url": self.url}), name, self.passwords)

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [nats_server(), "-c", str(self._config)], stdout=log, stderr=log, env={**os.environ, **self.passwords}
            )
        while not self._listens():
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.01)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _listens(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True
