"""A replacement of PySpark's daemon: keeps a worker if Spark stops reading a task's output early.

``first()``, ``isEmpty()``, ``show()`` and ``limit(n)`` stop reading a task's output early. Spark
then closes the worker's connection, and PySpark's worker writes a traceback and ends. The next task
must wait for a new process, for its imports and for its broker connections. With this module, the
worker writes no traceback and waits for the next connection.

Spark uses this module instead of ``pyspark.daemon`` if the setting ``spark.python.daemon.module``
names it. Workers that fail or must not be reused end as in PySpark. This module replaces attributes
of PySpark's module, and does nothing if these attributes are missing.

Spark always plans batches in processes of ``pyspark.daemon``, without this module. A planning
process may write a ``BrokenPipeError`` when Spark closes its connection (``docs/operations.md``).
"""

import errno
import importlib
import os
import select
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, Final

from pyspark import daemon

_IDLE_S: Final = 60.0
"""Time for which an idle worker waits for a connection before it ends (s), as in Spark itself."""

_WAITING, _CONNECTION, _TAKEN = b"w", b"c", b"t"

WorkerMain = Callable[[BinaryIO, BinaryIO], None]


class _Listener(socket.socket):
    """The daemon's listening socket. It passes each new connection to a waiting worker, if any.

    If no worker waits, the daemon forks a new worker. The new worker inherits one end of a socket
    pair, the ``line``. The worker later waits on this line for its next connection. All methods run
    in the daemon's only thread.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lines: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and return it if no waiting worker can take it.

        Raises:
            InterruptedError: A waiting worker has taken the connection. The daemon then calls this
                method again.
        """
        _child.close_line()  # the last forked worker has its own copy
        connection, address = super().accept()
        if self._is_taken(connection):
            connection.close()
            raise InterruptedError(errno.EINTR, "A worker that waited has the connection.")
        ours, _child.line = socket.socketpair()
        self._lines.append(ours)
        _child.lines_of_others = self._lines
        return connection, address

    def _is_taken(self, connection: socket.socket) -> bool:
        for line in list(self._lines):
            try:
                if line.recv(1, socket.MSG_DONTWAIT) == _WAITING:
                    socket.send_fds(line, [_CONNECTION], [connection.fileno()])
                    # A worker whose wait ends right now does not confirm, and has no connection.
                    if line.recv(1) == _TAKEN:
                        return True
            except BlockingIOError:
                continue  # the worker is busy
            except OSError:
                pass
            self._lines.remove(line)  # the worker has ended
            line.close()
        return False


class _Child:
    def __init__(self) -> None:
        self.line: socket.socket | None = None
        self.lines_of_others: list[socket.socket] = []
        self.was_left = False
        self._is_prepared = False

    def prepare(self) -> None:
        """Initialize the worker process once, after the fork: its imports may start threads."""
        if self._is_prepared:
            return
        self._is_prepared = True
        # With an open copy here, other workers would not notice the end of the daemon.
        for line in self.lines_of_others:
            line.close()
        module: Any = importlib.import_module(sys.argv[1])
        module.main = partial(_run_task, module.main)

    def close_line(self) -> None:
        """Close the daemon's copy of a line, so that the daemon notices the worker's exit."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def next_connection(self) -> socket.socket | None:
        if self.line is None or not os.environ.get("SPARK_REUSE_WORKER"):
            return None
        try:
            self.line.sendall(_WAITING)
            if not select.select([self.line], [], [], _IDLE_S)[0]:
                return None
            _, received, _, _ = socket.recv_fds(self.line, 1, 1)
            if not received:
                return None
            connection = socket.socket(fileno=received[0])
            self.line.sendall(_TAKEN)
        except OSError:
            return None
        return connection


_child: Final = _Child()
_serve: Final = daemon.worker


def worker(connection: socket.socket, authenticated: bool) -> int:
    """Run the tasks of a connection as PySpark does, and return the worker's exit code.

    If Spark has closed the connection early, wait for the next connection and run its tasks.
    """
    _child.prepare()
    code = _serve(connection, authenticated)
    while code and _child.was_left and (following := _child.next_connection()) is not None:
        os.dup2(following.fileno(), connection.fileno(), inheritable=False)
        following.close()
        connection.sendall(struct.pack("!i", os.getpid()))
        _child.was_left = False
        is_local = os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() == "true"
        code = _serve(connection, is_local)
    return code


def _run_task(worker_main: WorkerMain, infile: BinaryIO, outfile: BinaryIO) -> None:
    """Run one task. If Spark has closed the connection, discard the rest of the task's output.

    Args:
        worker_main: PySpark's function that runs a task.
        infile: The input from Spark.
        outfile: The output to Spark.
    """
    try:
        worker_main(infile, outfile)
        outfile.flush()
    except (SystemExit, OSError, EOFError) as end:
        if not _is_closed(outfile):
            raise
        cause = end.__context__ if isinstance(end, SystemExit) else end
        _child.was_left = isinstance(cause, BrokenPipeError | ConnectionResetError | EOFError)
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), outfile.fileno(), inheritable=False)
        raise SystemExit(1) from None


def _is_closed(outfile: BinaryIO) -> bool:
    """Whether Spark has closed the connection of a finished task.

    The output is flushed first, as in PySpark, because the flush fails on a closed connection.
    Unread input is discarded.
    """
    try:
        outfile.flush()
    except OSError:
        return True
    with socket.socket(fileno=os.dup(outfile.fileno())) as copy:
        try:
            while copy.recv(65_536, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return False
        except OSError:
            return True
    return True


if __name__ == "__main__":
    names: Any = daemon
    if sys.argv[1:] == ["pyspark.worker"]:
        names.socket = SimpleNamespace(**{**vars(socket), "socket": _Listener})
    if sys.argv[1:]:
        names.worker = worker
    daemon.manager()
