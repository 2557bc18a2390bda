"""Load of the stages of a long chain on a ZooKeeper server: at rest, and throttled."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

from tests.services.zookeeper import ZookeeperServer

from bench.figures import Figure
from bench.load.stages import CHANGING, END, IDLE, THROTTLING
from bench.pairs import Spread
from bench.processes import answers, cpu_seconds, order, resident_mb, stages
from bench.scale import Scale
from bench.stage import Stage
from headrace.gate.control.pressure import HopSettings
from headrace.operate.local import ensure_java

MOST_PROCESSES: Final = 10
LEAST_SHARE: Final = 5
"""Stages of each process, whatever shares a session."""

ALONE: Final = 5
"""So many times fewer are the stages with a session each: their threads are what limits a machine
that runs all of them."""

SERVER: Final = {"tickTime": "2000"}
"""As ZooKeeper's own sample of a configuration has it."""

SETTLE_S: Final = 2
"""After the stages were given something else to do; by then they do it."""

LOOK_S: Final = 0.5
"""Interval between looks at the number of requests that wait at the server."""

MODES: Final = {IDLE: "at rest", THROTTLING: "all throttled", CHANGING: "a tenth changes each s"}
LEASE_MS: Final = HopSettings().lease_ms


def measure(_stage: Stage, scale: Scale) -> Iterator[Figure]:
    """With a session for each application, as flows have them; and fewer stages, with one each."""
    alone = scale.flow_stages // ALONE
    for count, sessions in ((scale.flow_stages, scale.flow_applications), (alone, alone)):
        with (
            ZookeeperServer(ensure_java(), settings=SERVER, quick_start=False) as server,
            ExitStack() as running,
        ):
            processes = _started(server, sessions, count, running)
            for mode, following in pairwise([*MODES, END]):
                load = _load(server, scale.load_seconds)
                delays_ms = list(chain.from_iterable(order(processes, following)))
                yield from _figures(f"{count} in {sessions}, {MODES[mode]}", load, delays_ms)


def _started(
    server: ZookeeperServer, sessions: int, count: int, running: ExitStack
) -> "list[subprocess.Popen[str]]":
    """Stages that take part, all of them; each process has an equal share."""
    number_of_them = min(MOST_PROCESSES, count // LEAST_SHARE, sessions)
    share = count // number_of_them
    processes = [
        running.enter_context(
            stages(
                hosts=server.hosts,
                first=number * share,
                count=share,
                chain=share * number_of_them,
                per_session=count // sessions,
                lease_ms=LEASE_MS,
            )
        )
        for number in range(number_of_them)
    ]
    answers(processes)
    return processes


@dataclass(frozen=True, slots=True)
class _Load:
    """Load of a server for some time.

    Attributes:
        cpu: The part of one core that it needed (%).
        requests_per_s: Requests that it was sent.
        latency_ms: Time that it needed for an answer, on the average.
        worst_ms: The longest.
        outstanding: Requests that were waiting, at most.
        znodes: Nodes at the end.
        watches: Watches at the end.
        memory_mb: Its memory that is in use and in RAM, at the end.
    """

    cpu: float
    requests_per_s: float
    latency_ms: float
    worst_ms: float
    outstanding: float
    znodes: float
    watches: float
    memory_mb: float


def _load(server: ZookeeperServer, lasts_s: float) -> _Load:
    time.sleep(min(SETTLE_S, lasts_s))
    assert server.pid is not None
    server.tell("srst")  # counts from here
    began_s, computed_s = time.perf_counter(), cpu_seconds(server.pid)
    outstanding = 0.0
    while (took_s := time.perf_counter() - began_s) < lasts_s:
        time.sleep(LOOK_S)
        outstanding = max(outstanding, float(_statistics(server)["zk_outstanding_requests"]))
    found, computed_s = _statistics(server), cpu_seconds(server.pid) - computed_s
    return _Load(
        100 * computed_s / took_s,
        float(found["zk_packets_received"]) / took_s,
        float(found["zk_avg_latency"]),
        float(found["zk_max_latency"]),
        outstanding,
        float(found["zk_znode_count"]),
        float(found["zk_watch_count"]),
        resident_mb(server.pid),
    )


def _statistics(server: ZookeeperServer) -> dict[str, str]:
    """Return the server's own statistics, by name."""
    rows = (line.partition("\t") for line in server.tell("mntr").splitlines())
    return {name: value for name, _, value in rows}


def _figures(name: str, load: _Load, delays_ms: Sequence[int]) -> Iterator[Figure]:
    details = {
        "outstanding": load.outstanding,
        "znodes": load.znodes,
        "watches": load.watches,
        "memory_mb": load.memory_mb,
    }
    yield Figure(f"{name}: CPU", "% core", Spread.of([load.cpu]), details=details)
    yield Figure(f"{name}: requests", "/s", Spread.of([load.requests_per_s]))
    latency = Spread(load.latency_ms, load.latency_ms, load.worst_ms)
    yield Figure(f"{name}: answered", "ms", latency)
    if delays_ms:
        yield Figure(f"{name}: signals", "ms", Spread.of(delays_ms))
