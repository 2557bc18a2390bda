"""PgBouncer, a pooler of connections to PostgreSQL: this machine's own, or Debian's, unpacked."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict
from tests.services.certificates import CertificateFiles
from tests.services.debian import program
from tests.services.waiting import wait_until

from headrace.operate.local.servers import ServerProcess, free_ports

MODES = ("transaction", "session")


class PgBouncer(ServerProcess):
    """A pooler on a port of its own, before every database of one server.

    It can be stopped, killed and started again, with its address kept; it ends with the block, and
    at the latest when this process ends.

    Args:
        server: The URL of a database of a server that is reached by a socket in the file system.
        mode: The scope of a client's connection to the server: a transaction, or a session.
        settings: More lines of its configuration.
        tls: The certificate by which it takes TLS, and nothing else; None for none.
    """

    def __init__(
        self, server: str, mode: str, *settings: str, tls: CertificateFiles | None = None
    ) -> None:
        super().__init__()
        (port,) = free_ports(1)
        self.host = f"127.0.0.1:{port}"
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-pgbouncer-"))
        self._folder.chmod(0o755)  # as root it would not run: it becomes the server's own user
        sockets = Path(str(conninfo_to_dict(server)["host"]))
        (self._folder / "users").write_text('"postgres" ""\n')
        lines = [
            "[databases]",
            f"* = host={sockets}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {port}",
            "unix_socket_dir =",
            "auth_type = trust",
            f"auth_file = {self._folder}/users",
            f"pool_mode = {mode}",
            # In a session's, each connection of a client's keeps one.
            f"default_pool_size = {2 if mode == 'transaction' else 20}",
            "server_login_retry = 1",
            *settings,
            *(self._tls(tls, sockets.owner()) if tls else []),
            *([f"user = {sockets.owner()}"] if os.geteuid() == 0 else []),
        ]
        (self._folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")

    def _tls(self, files: CertificateFiles, user: str) -> list[str]:
        """Lines for TLS; as root it reads the files as the server's own user."""
        lines = ["client_tls_sslmode = require"]
        for name, file in (("cert", files.certificate), ("key", files.key)):
            place = shutil.copy(file, self._folder)
            if os.geteuid() == 0:
                shutil.chown(place, user)
            lines.append(f"client_tls_{name}_file = {place}")
        return lines

    def url(self, database: str) -> str:
        """Return the URL of a database of the server by this pooler; the same after every start."""
        return f"postgresql://postgres@{self.host}/{database}?connect_timeout=60"

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
