"""Mosquitto, a real MQTT 5 broker: this machine's own, or unpacked from Debian's packages."""

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.services.debian import program
from tests.services.waiting import wait_until

from headrace.operate.local.servers import free_ports


class Mosquitto:
    """A broker on a port of its own, which keeps its sessions in a folder over kills.

    Args:
        folder: Its configuration and its sessions.
        users: A file of users and passwords, as ``mosquitto_passwd`` writes it.
        tls: Settings of another listener, at ``tls_port`` of all addresses; None for none.
    """

    def __init__(
        self, folder: Path, users: str | None = None, tls: Sequence[str] | None = None
    ) -> None:
        self.port, self.tls_port = free_ports(2)
        self._ports = [self.port] if tls is None else [self.port, self.tls_port]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        lines = [
            f"listener {self.port} 127.0.0.1",
            "persistence true",
            f"persistence_location {folder}/",
            "autosave_on_changes true",
            "autosave_interval 1",
            "max_queued_messages 0",
            f"allow_anonymous {'true' if users is None else 'false'}",
        ]
        if os.geteuid() == 0:
            lines.append("user root")
        if users is not None:
            (folder / "users").write_text(users)
            (folder / "users").chmod(0o600)
            lines.append(f"password_file {folder}/users")
        if tls is not None:
            lines += [f"listener {self.tls_port}", *tls]
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        mosquitto = program("mosquitto")
        with (self._folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen(
                [mosquitto.path, "-c", f"{self._folder}/mosquitto.conf"],
                env=mosquitto.variables,
                stdout=log,
                stderr=log,
            )
        wait_until(self._listens)

    def stop(self) -> None:
        """End it as its init system would: what it holds is on disk."""
        if self._process:
            self._process.terminate()
            self._process.wait(30)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait(30)

    def forget(self) -> None:
        """Start it anew without what it held."""
        self.stop()
        (self._folder / "mosquitto.db").unlink()
        self.start()

    def _listens(self) -> bool:
        assert self._process
        log = (self._folder / "mosquitto.log").read_text
        assert self._process.poll() is None, log()
        try:
            for port in self._ports:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            return False
        return True
