"""Delay of senders' acknowledgements: alone, and beside many who never end."""

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Final

from bench.figures import AtMost, Figure
from bench.load.records import chunk
from bench.pairs import Spread, in_turn
from bench.processes import LINES, POSTS, half_open, receiver, send
from bench.scale import Scale
from bench.stage import Stage
from bench.synced import synced_writes
from headrace.journal.receivers import IntakeSettings

PER_S: Final = 10_000
RECORDS: Final = 100
"""Sent at once."""

CONNECTIONS: Final = 32
"""Connections of the sender of requests: each waits for its answer, and fewer are too slow."""

WARM_UP_S: Final = 1

INTERVAL_MS: Final = IntakeSettings().block_interval_ms
AT_MOST_TWICE: Final = AtMost(2)

ALONE: Final = "alone"
BESIDE: Final = "beside"
NAMES: Final = {LINES: "lines over TCP", POSTS: "NDJSON over HTTP"}


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """At a moderate pace, which leaves the receiver idle most of the time."""
    for kind, name in NAMES.items():
        sync_ms = sync_ms_of(stage, scale)
        halves_ms: list[float] = []
        tails_ms = in_turn(
            {
                ALONE: partial(_tail_ms, stage, scale, kind, 0, halves_ms),
                BESIDE: partial(_tail_ms, stage, scale, kind, scale.half_open, []),
            },
            scale.pairs,
            warm_ups=min(scale.warm_ups, 1),
        )
        details = {"tails_ms": tails_ms, "interval_ms": INTERVAL_MS, "sync_ms": sync_ms}
        yield Figure(f"{name}: acknowledged, median", "ms", Spread.of(halves_ms[-scale.pairs :]))
        yield Figure(
            f"{name}: acknowledged, 99 %",
            "ms",
            Spread.of(tails_ms[ALONE]),
            target=AtMost(round(2 * INTERVAL_MS + sync_ms)),
            details=details,
        )
        yield Figure.side_by_side(
            f"{name}: 99 %, beside {scale.half_open} half-open",
            "ms",
            headrace=tails_ms[BESIDE],
            native=tails_ms[ALONE],
            target=AT_MOST_TWICE,
        )
    yield Figure("a block of these, written and synced", "ms", Spread.of([sync_ms]))


def _tail_ms(stage: Stage, scale: Scale, kind: str, slow: int, halves_ms: list[float]) -> float:
    """Return the delay that 99 of 100 acknowledgements keep within; note their median."""
    journal = stage.fresh_folder("journal")
    what, how = f"{kind}.at_a_pace", {"per_s": PER_S, "records": RECORDS}
    if kind == POSTS:
        how["connections"] = CONNECTIONS
    with ExitStack() as stack:
        listening = stack.enter_context(receiver(journal, kind))
        send(what, port=listening.port, seconds=WARM_UP_S, **how)
        if slow:
            stack.enter_context(half_open(listening.port, kind, slow))
        found = send(what, port=listening.port, seconds=scale.receiver_seconds, **how)
    shutil.rmtree(journal)
    delays_ms = found["delays_ms"]
    halves_ms.append(median(delays_ms))
    return tail(delays_ms)


def tail(values: Sequence[float]) -> float:
    """The value that 99 of 100 keep within.

    >>> tail(range(1, 201))
    198
    """
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def sync_ms_of(stage: Stage, scale: Scale) -> float:
    """Return the median time to write and sync the data of one interval (ms)."""
    data = chunk(int(PER_S * INTERVAL_MS / 1000))
    return median(synced_writes(stage.folder, data, scale.repetitions)) * 1000
