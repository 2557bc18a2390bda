"""The pure plan of a batch, for many partitions."""

import time
from collections.abc import Iterator
from typing import Final

from bench.figures import AtMost, Figure
from bench.pairs import Spread
from bench.scale import Scale
from bench.stage import Stage
from headrace.core.ranges import TopicPartition
from headrace.gate.control.limits import BatchLimits
from headrace.gate.control.plan import plan

PARTITIONS: Final = 10_000
RATE_PER_S: Final = 1_000_000.0
PROMISED: Final = AtMost(20)


def measure(_stage: Stage, scale: Scale) -> Iterator[Figure]:
    """With every law at work: the rate, the cap in records and the cap in bytes."""
    partitions = [TopicPartition("orders", number) for number in range(PARTITIONS)]
    current = {tp: 1_000 * tp.partition for tp in partitions}
    latest = {tp: start + 100 + tp.partition % 1_000 for tp, start in current.items()}
    limits = BatchLimits(
        seconds_per_batch=1.0, initial_rate=1_000, max_records=900_000, max_bytes=100_000_000
    )
    times_ms = []
    for _ in range(scale.repetitions):
        began_s = time.perf_counter()
        plan(current, latest, RATE_PER_S, limits, record_bytes=200)
        times_ms.append((time.perf_counter() - began_s) * 1000)
    yield Figure(f"{PARTITIONS} partitions", "ms", Spread.of(times_ms), target=PROMISED)
