"""Many gates on one ledger in PostgreSQL, each with a batch an interval: where it bends."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

from bench.figures import AtMost, Figure
from bench.pairs import Spread
from bench.postgresql import Watched, a_postgresql, fresh_schema, watching
from bench.processes import answers, gates, order
from bench.scale import Scale
from bench.stage import Stage
from bench.table import number
from headrace.gate.ledger.ledger import Ledger

PARTITIONS: Final = 4
PROCESSES: Final = 4
PROMISED: Final = AtMost(10)
"""The ledger's time of a batch (ms), as of one gate alone."""


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """A ledger of its own for each number of gates; the last one also without awaiting syncs."""
    runs = [(count, interval_s, True) for count, interval_s in scale.gates]
    runs.append((*scale.gates[-1], False))
    with a_postgresql(stage) as database:
        for count, interval_s, awaits_syncs in runs:
            with fresh_schema(database, awaits_syncs=awaits_syncs) as url:
                found, server = _driven(url, count, interval_s, scale.gates_seconds)
            name = f"{number(count)} gates, every {interval_s:g} s"
            name = name if awaits_syncs else f"{name}, unsynced"
            yield from _figures(name, found, server, PROMISED if awaits_syncs else None)


def _driven(
    url: str, count: int, interval_s: float, seconds: float
) -> tuple[list[dict[str, Any]], Watched]:
    Ledger.open(url).close()
    share = -(-count // PROCESSES)
    with ExitStack() as stack:
        drivers = [
            stack.enter_context(
                gates(
                    url=url,
                    first=first,
                    count=min(share, count - first),
                    interval_s=interval_s,
                    seconds=seconds,
                    partitions=PARTITIONS,
                )
            )
            for first in range(0, count, share)
        ]
        answers(drivers)
        with watching(url) as server:
            found = order(drivers, "go")
        order(drivers, "end")
    return found, server


def _figures(
    name: str, found: Sequence[dict[str, Any]], server: Watched, target: AtMost | None
) -> Iterator[Figure]:
    planner_ms = [ms for each in found for ms in each["planner_ms"]]
    ledger_ms = [ms for each in found for ms in each["ledger_ms"]]
    ran = sum(each["ran"] for each in found)
    details = {
        "statements": sum(each["statements"] for each in found) / ran,
        "commits": server.commits / ran,
        "wal_bytes": server.wal_bytes / ran,
        "client_cpu_ms": 1000 * sum(each["cpu_s"] for each in found) / ran,
        "connections": server.connections,
        "connections_do": dict(server.does.most_common()),
    }
    yield Figure(f"{name}: ledger", "ms", Spread.of(ledger_ms), target=target, details=details)
    yield Figure(f"{name}: ledger, 99 %", "ms", Spread.of([_most_of(ledger_ms)]))
    yield Figure(f"{name}: planner", "ms", Spread.of(planner_ms))
    yield Figure(f"{name}: planner, 99 %", "ms", Spread.of([_most_of(planner_ms)]))
    rate = sum(len(each["ledger_ms"]) / each["seconds"] for each in found)
    yield Figure(f"{name}: batches", "/s", Spread.of([rate]))
    if server.cpu_s:
        yield Figure(f"{name}: server's CPU", "ms", Spread.of([1000 * server.cpu_s / ran]))


def _most_of(values: Sequence[float]) -> float:
    """Return the value that 99 in a hundred do not exceed."""
    return sorted(values)[min(len(values) - 1, round(0.99 * len(values)))]
