"""ZooKeeper servers of one's own, from the jars that pyspark carries."""

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pyspark

from headrace.operate.local import Java
from headrace.operate.local.servers import ServerProcess, free_ports

HOST = "127.0.0.1"
START_TIMEOUT_S = 60
SETTINGS = {
    "tickTime": "100",  # sessions are at least two of it long
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
}


class ZookeeperServer(ServerProcess):
    """One server in one Java process, on the loopback address, with its data in its own folder.

    It can be stopped, killed, frozen and started again, with its address kept; it ends with
    ``close``, and at the latest when this process ends.

    Args:
        java: The Java to run it on.
        settings: Settings of its configuration file, over those in ``SETTINGS``.
        quick_start: Have Java compile fast rather than well: starts sooner, serves slower.
    """

    def __init__(
        self, java: Java, *, settings: Mapping[str, str] | None = None, quick_start: bool = True
    ) -> None:
        super().__init__()
        (self.port,) = free_ports(1)
        self.hosts = f"{HOST}:{self.port}"
        self._java = java
        self._settings = {**SETTINGS, **(settings or {})}
        self._quick_start = quick_start
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-zookeeper-"))

    @property
    def pid(self) -> int | None:
        """The process id of the server; none while it is stopped."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it, and return when it answers."""
        settings = {
            "dataDir": str(self._folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": HOST,
            **self._settings,
        }
        file = self._folder / "zoo.cfg"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        jars = Path(pyspark.__file__).parent / "jars"
        server = [
            *(str(self._java.executable), "-Xmx256m", "-XX:+UseSerialGC"),
            *(["-XX:TieredStopAtLevel=1"] if self._quick_start else []),
            *("-cp", f"{jars}/*"),
            *("org.apache.zookeeper.server.ZooKeeperServerMain", str(file)),
        ]
        process = self.serve(self._folder, server)
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.tell("ruok") != "imok":
            words = (self._folder / "server.log").read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"ZooKeeper did not start: {words}"
            assert time.monotonic() < deadline, f"ZooKeeper does not answer: {words}"
            time.sleep(0.05)

    def tell(self, command: str) -> str:
        """The answer to one of its four-letter commands; nothing while it is away."""
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as connection:
                connection.sendall(command.encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def freeze(self) -> None:
        """Have it do nothing, with its connections open, until `thaw`."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # the signal takes a moment

    def thaw(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def lose_data(self) -> None:
        """Delete all that it knows, while it is stopped."""
        assert self._process is None
        shutil.rmtree(self._folder / "data")

    def close(self) -> None:
        """Stop it and delete its data."""
        self.kill()
        shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
