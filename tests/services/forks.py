"""Python processes that have imported what they need: forks of one that did it once.

    python -m tests.services.forks SOCKET

Spark starts a Python process for each streaming query, its planner, and it imports for most of a
second. The queries of the shared Spark are hundreds. Other programs with a Spark have real ones.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from tests.services.waiting import wait_until

VARIABLE: Final = "HEADRACE_TESTS_FORKS"
START_UP: Final = str(Path(__file__).with_name("start_up"))

_PACKAGES: Final = (
    "headrace.gate.kafka",
    "headrace.journal",
    "headrace.gate.source",
    "headrace.gate.ledger",
)
_FIRST: Final = "pyspark.sql.streaming.python_streaming_source_runner"


@contextmanager
def forks_for_planners(folder: Path) -> Iterator[dict[str, str]]:
    """Variables with which a Spark is started whose planners are to be forks."""
    path = folder / "forks"
    with subprocess.Popen([sys.executable, "-m", __name__, path], stdin=subprocess.PIPE) as server:
        wait_until(path.exists)
        paths = filter(None, [START_UP, os.environ.get("PYTHONPATH")])
        yield {VARIABLE: str(path), "PYTHONPATH": os.pathsep.join(paths)}
        assert server.stdin is not None
        server.stdin.close()  # it ends with this process, however that ends


def serve(path: Path) -> NoReturn:
    """Fork for each connection, until standard input is at its end."""
    _import_all()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        bound = path.with_name("binding")
        listener.bind(str(bound))
        listener.listen()
        bound.rename(path)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _events in selector.select():
                if key.fileobj is sys.stdin:
                    sys.exit()
                elif key.fileobj is listener:
                    connection, _address = listener.accept()
                    fork = _fork(connection)
                    selector.register(connection, selectors.EVENT_READ, fork)
                else:  # The process that the fork stands for has ended, or was killed.
                    selector.unregister(key.fileobj)
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.close()
                    with suppress(ProcessLookupError):
                        os.kill(key.data, signal.SIGKILL)


def _import_all() -> None:
    importlib.import_module(_FIRST)
    for name in _PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()


def _fork(connection: socket.socket) -> int:
    _, files, _, _ = socket.recv_fds(connection, 1, 4)
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(1 << 20)
    fork = os.fork()
    if fork == 0:
        connection.close()
        _run(json.loads(line), files)
    for file in files:
        os.close(file)
    return fork


def _run(started_with: dict[str, Any], files: list[int]) -> NoReturn:
    """Be the process that was started."""
    *standard, ends = files
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(started_with["folder"])
    os.environ.clear()
    os.environ.update(started_with["environ"])
    sys.path[:] = started_with["path"]
    importlib.invalidate_caches()
    sys.argv = [started_with["module"]]
    status = 1
    try:
        runpy.run_module(started_with["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001  (as Python does with what a program raises)
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(ends, bytes([status & 255]))
        os._exit(status)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
