"""PySpark's daemon with workers that are kept; the test is Spark's side of their connections."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.services.waiting import wait_until

from headrace.gate.execution.spark_session import DAEMON

pytestmark = pytest.mark.integration


class Daemon:
    """A daemon's process, and what Spark does with it."""

    def __init__(self, module: str, folder: Path, **environ: str) -> None:
        self.errors = folder / "stderr"
        spark = {
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
            "SPARK_REUSE_WORKER": "1",
        }
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, "pyspark.worker"],
                env=os.environ | spark | environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._process.stdout is not None
        [length] = struct.unpack("!i", self._process.stdout.read(4))
        self._path = self._process.stdout.read(length).decode()

    def connect(self) -> tuple[socket.socket, int]:
        """A connection to a worker, and its process."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        [pid] = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
        return connection, pid

    def leave(self) -> int:
        """Close a connection at once; the process that had it."""
        connection, pid = self.connect()
        connection.close()
        return int(pid)

    def end(self) -> None:
        """End the daemon as Spark does."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        self._process.kill()
        self.end()


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name, as that of a socket has to be."""
    with TemporaryDirectory(prefix="headrace-") as name:
        yield Path(name)


@pytest.fixture
def daemon(folder: Path) -> Iterator[Daemon]:
    made = Daemon(DAEMON, folder)
    yield made
    made.end()


def is_gone(pid: int) -> bool:
    """Whether a process has ended, which it may do between the opening of its file and the read."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


def test_a_worker_whose_connection_is_closed_serves_another_and_is_silent(daemon: Daemon) -> None:
    """PySpark's own ends each time, with a traceback."""
    first = daemon.leave()
    wait_until(lambda: daemon.leave() == first)
    connection, pid = daemon.connect()
    other, another = daemon.connect()
    assert pid != another, "one that is at work is not taken away from it"
    connection.close()
    other.close()
    wait_until(lambda: {daemon.leave(), daemon.leave()} <= {first, pid, another})
    assert daemon.errors.read_text() == ""


def test_a_worker_whose_task_failed_answers_why_and_is_not_kept(daemon: Daemon) -> None:
    connection, pid = daemon.connect()
    with connection:
        connection.sendall(struct.pack("!ii", 3, 3) + b"4.9" + bytes(4_096))
        connection.settimeout(60)
        assert connection.recv(4, socket.MSG_WAITALL) == struct.pack("!i", -2)
    wait_until(lambda: is_gone(pid))
    assert daemon.leave() != pid


def test_a_worker_that_is_not_to_be_reused_is_not_kept(folder: Path) -> None:
    once = Daemon(DAEMON, folder, SPARK_REUSE_WORKER="")
    pid = once.leave()
    wait_until(lambda: is_gone(pid))
    assert once.leave() != pid
    once.end()
    assert once.errors.read_text() == ""


def test_kept_workers_end_with_their_daemon_even_if_it_is_killed(folder: Path) -> None:
    killed = Daemon(DAEMON, folder)
    pid = killed.leave()
    wait_until(lambda: killed.leave() == pid)
    killed.kill()
    wait_until(lambda: is_gone(pid))
