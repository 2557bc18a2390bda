"""A receiver whose job is slower than its senders: the rate that it admits, and its memory."""

import math
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Final

from bench.figures import AtMost, Figure, Near
from bench.memory import FLAT, growth
from bench.pairs import Spread
from bench.processes import LINES, found, receiver, resident_mb, send, sending
from bench.receiver_delay import NAMES, sync_ms_of
from bench.scale import Scale
from bench.stage import Stage

RATES_PER_S: Final = (10_000, 100_000)
INTERVAL_MS: Final = 20
"""Short: what was admitted is seen when it is acknowledged, up to two of them and a sync later."""

ACCURATE: Final = Near(1, by=0.05)
BURST_S: Final = 1.0
SETTLED: Final = 0.2
"""After this part of a run what a full bucket had at the start is long gone."""

JOB_PER_S: Final = 20_000
"""Less than a tenth of what the senders could send."""

SAMPLE_S: Final = 0.1
CONNECTIONS: Final = 8
REQUEST_RECORDS: Final = 5_000


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Senders who send as much as is taken, for as long as it lasts."""
    seen_after_s = (2 * INTERVAL_MS + sync_ms_of(stage, scale)) / 1000
    for rate_per_s in RATES_PER_S:
        acknowledged = _acknowledged(stage, scale, rate_per_s)
        yield Figure.side_by_side(
            f"admitted at {rate_per_s} records/s",
            "rows/s",
            headrace=[rate_of(acknowledged)],
            native=[rate_per_s],
            target=ACCURATE,
            details={"acknowledged": acknowledged},
        )
        yield Figure(
            f"largest burst at {rate_per_s}/s, in seconds' worth",
            "s",
            Spread.of([largest_burst(acknowledged, rate_per_s) / rate_per_s]),
            target=AtMost(round(BURST_S + seen_after_s, 2)),
        )
    for kind, name in NAMES.items():
        sizes_mb = _sizes_mb(stage, scale, kind)
        yield Figure(f"memory, {name}", "MB", Spread.of(sizes_mb), details={"samples_mb": sizes_mb})
        yield Figure(
            f"memory, {name}, end over start", "", Spread.of([growth(sizes_mb)]), target=FLAT
        )


Acknowledged = Sequence[tuple[float, int]]
"""Times (s), and how many records were acknowledged by then; both rise."""


def rate_of(acknowledged: Acknowledged) -> float:
    """Records a second, without the beginning.

    >>> rate_of([(0.0, 900), (2.0, 1_000), (3.0, 1_500), (4.0, 2_000)])
    500.0
    """
    first_s, last_s = acknowledged[0][0], acknowledged[-1][0]
    from_s = first_s + SETTLED * (last_s - first_s)
    settled = [each for each in acknowledged if each[0] >= from_s]
    (start_s, start), (end_s, end) = settled[0], settled[-1]
    return (end - start) / (end_s - start_s)


def largest_burst(acknowledged: Acknowledged, rate_per_s: float) -> float:
    """The most records that any span of time has more than the rate gives it.

    >>> largest_burst([(0.0, 100), (1.0, 110), (2.0, 150)], rate_per_s=20)
    110.0
    """
    largest, lowest, before = 0.0, math.inf, 0
    for time_s, count in acknowledged:
        given = rate_per_s * time_s
        lowest = min(lowest, before - given)  # a span begins right before these came
        largest = max(largest, count - given - lowest)
        before = count
    return largest


def _acknowledged(stage: Stage, scale: Scale, rate_per_s: int) -> list[tuple[float, int]]:
    journal = stage.fresh_folder("journal")
    settings = f"block_interval_ms = {INTERVAL_MS}\n"
    with receiver(journal, LINES, "--max-rate", str(rate_per_s), settings=settings) as listening:
        sent = send("lines.without_pause", port=listening.port, seconds=scale.limited_seconds)
    shutil.rmtree(journal)
    return [(time_s, count) for time_s, count in sent["acknowledged"]]


def _sizes_mb(stage: Stage, scale: Scale, kind: str) -> list[float]:
    """The receiver's resident memory while its senders have to wait."""
    journal = stage.fresh_folder("journal")
    how = {} if kind == LINES else {"each": REQUEST_RECORDS, "connections": CONNECTIONS}
    sizes_mb = []
    with (
        receiver(journal, kind, "--max-rate", str(JOB_PER_S)) as listening,
        sending(
            f"{kind}.without_pause", port=listening.port, seconds=scale.limited_seconds, **how
        ) as sender,
    ):
        end_s = time.monotonic() + scale.limited_seconds
        while time.monotonic() < end_s:
            sizes_mb.append(resident_mb(listening.process_id))
            time.sleep(SAMPLE_S)
        found(sender)
    shutil.rmtree(journal)
    return sizes_mb
