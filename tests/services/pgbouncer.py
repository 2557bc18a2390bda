"""PgBouncer, a pooler of connections to PostgreSQL: this machine's own, or Debian's, unpacked."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict
from tests.services.debian import program
from tests.services.waiting import wait_until

from headrace.local.servers import ServerProcess, free_ports

MODES = ("transaction", "session")


class PgBouncer(ServerProcess):
    """A pooler on a port of its own, before every database of one server.

    It can be stopped, killed and started again, with its address kept; it ends with the block, and
    at the latest when this process ends.

    Args:
        server: The URL of a database of a server that is reached by a socket in the file system.
        mode: The scope of a client's connection to the server: a transaction, or a session.
        settings: More lines of its configuration.
    """

    def __init__(self, server: str, mode: str, *settings: str) -> None:
        super().__init__()
        (self._port,) = free_ports(1)
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-pgbouncer-"))
        self._folder.chmod(0o755)  # as root it would not run: it becomes the server's own user
        sockets = Path(str(conninfo_to_dict(server)["host"]))
        (self._folder / "users").write_text('"postgres" ""\n')
        lines = [
            "[databases]",
            f"* = host={sockets}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self._port}",
            "unix_socket_dir =",
            "auth_type = trust",
            f"auth_file = {self._folder}/users",
            f"pool_mode = {mode}",
            # In a session's, each connection of a client's keeps one.
            f"default_pool_size = {2 if mode == 'transaction' else 20}",
            "server_login_retry = 1",
            *settings,
            *([f"user = {sockets.owner()}"] if os.geteuid() == 0 else []),
        ]
        (self._folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")

    def url(self, database: str) -> str:
        """Return the URL of a database of the server by this pooler; the same after every start."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}?connect_timeout=60"

    @property
    def log(self) -> str:
        return (self._folder / "server.log").read_text(errors="replace")

    def launch(self) -> None:
        """Start it, be there a server behind it or not."""
        found = program("pgbouncer")
        libraries = f"LD_LIBRARY_PATH={found.variables.get('LD_LIBRARY_PATH', '')}"
        settings = str(self._folder / "pgbouncer.ini")
        command = ["env", libraries, found.path, "--quiet", settings]
        self.serve(self._folder, command)

    def start(self) -> None:
        """Start it, and return when a client reaches the server."""
        self.launch()
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, f"PgBouncer did not start: {self.log[-2000:]}"
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.kill()
        shutil.rmtree(self._folder)
