"""Receivers, bare programs and senders: processes of this machine, which end with a block."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from headrace.errors import HeadraceError

SEND_S: Final = 300
"""No sender takes longer."""

LINES: Final = "lines"
POSTS: Final = "posts"
COMMANDS: Final = {LINES: ("tcp", "--acknowledge"), POSTS: ("http",)}
"""Arguments of the receiver that each kind of sender sends to."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A process that listens on a port of this machine."""

    port: int
    process_id: int


@contextmanager
def receiver(journal: Path, kind: str, *options: str, settings: str = "") -> Iterator[Listening]:
    """Run ``headrace receive`` over the journal in a folder, on a port of its own.

    ``settings`` is the text of its settings file.
    """
    file = journal.with_suffix(".toml")
    file.write_text(settings)
    places = ["--journal", str(journal), "--port", "0", "--settings", str(file)]
    arguments = [*COMMANDS[kind], *places, "--json", *options]
    with _started("headrace", "receive", *arguments) as process:
        event = json.loads(_line(process))
        yield Listening(urlsplit(event["address"]).port or 0, process.pid)


@contextmanager
def bare_receiver(file: Path, kind: str) -> Iterator[Listening]:
    """Run a program that reads the same and only syncs it; see `bench.load.bare`."""
    with _load("bare.receive", path=str(file), kind=kind) as process:
        yield Listening(int(_line(process)), process.pid)


@contextmanager
def half_open(port: int, kind: str, count: int) -> Iterator[None]:
    """Have so many senders connected who never send anything whole."""
    with _load("half_open.hold", port=port, kind=kind, count=count, seconds=SEND_S) as process:
        _line(process)
        yield


@contextmanager
def stages(**arguments: Any) -> "Iterator[subprocess.Popen[str]]":
    """Run some stages of a chain; `order` tells them what to do. See `bench.load.stages`."""
    with _load("stages.take_part", **arguments) as process:
        yield process


@contextmanager
def gates(**arguments: Any) -> "Iterator[subprocess.Popen[str]]":
    """Run some gates without a Spark; `order` lets them begin. See `bench.load.gates`."""
    with _load("gates.drive", **arguments) as process:
        yield process


def order(processes: "Sequence[subprocess.Popen[str]]", mode: str) -> list[Any]:
    """Tell them what to do from now on; what they answer about what they did until now."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{mode}\n")
        process.stdin.flush()
    return answers(processes)


def answers(processes: "Sequence[subprocess.Popen[str]]") -> list[Any]:
    """The next line of each, from JSON.

    Raises:
        HeadraceError: One of them ended instead.
    """
    return [json.loads(_line(process)) for process in processes]


def send(what: str, **arguments: Any) -> Any:
    """Run a sender to its end; what it found. See `bench.load.__main__` for what there is.

    Raises:
        HeadraceError: It failed.
    """
    with sending(what, **arguments) as process:
        return found(process)


def first_batch(**arguments: Any) -> Any:
    """Run a program until its first batch has ended; what it found.

    Raises:
        HeadraceError: It failed; the reason is on the standard error.
    """
    with _started("bench.load.first_batch", json.dumps(arguments)) as process:
        return found(process)


def on_a_cluster(**arguments: Any) -> Any:
    """Run a gated query on executors in processes of their own; what it found.

    Raises:
        HeadraceError: It failed; the reason is on the standard error.
    """
    with _started("bench.load.cluster", json.dumps(arguments)) as process:
        return found(process)


def gated_query(**arguments: Any) -> Any:
    """Run a gated query over Spark Connect, or not; what it found. See `bench.load.connect`.

    Raises:
        HeadraceError: It failed; the reason is on the standard error.
    """
    with _started("bench.load.connect", json.dumps(arguments)) as process:
        return found(process)


@contextmanager
def sending(what: str, **arguments: Any) -> "Iterator[subprocess.Popen[str]]":
    """Run a sender beside the block; `found` waits for its end."""
    with _load(what, **arguments) as process:
        yield process


def found(process: "subprocess.Popen[str]") -> Any:
    """Return a sender's findings when it has ended.

    Raises:
        HeadraceError: It failed; the reason is on the standard error.
    """
    text, _ = process.communicate(timeout=SEND_S)
    if process.returncode:
        raise HeadraceError(
            f"A process of the benchmark ended with status {process.returncode}; see what it wrote."
        )
    return json.loads(text)


def resident_mb(process_id: int) -> float:
    """The memory of a process that is in use and in RAM."""
    listed = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(process_id)], capture_output=True, text=True, check=True
    )
    return int(listed.stdout) / 1024


def cpu_seconds(process_id: int) -> float:
    """Return the processor time of a process, as Linux counts it."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _load(what: str, **arguments: Any) -> "Iterator[subprocess.Popen[str]]":
    with _started("bench.load", what, json.dumps(arguments)) as process:
        yield process


@contextmanager
def _started(module: str, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C in the terminal is for us, who then end it
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: "subprocess.Popen[str]") -> str:
    """The next line that it writes.

    Raises:
        HeadraceError: It ended instead.
    """
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise HeadraceError("A process of the benchmark did not start; see what it wrote.")
    return line
