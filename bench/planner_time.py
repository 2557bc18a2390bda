"""The planner's whole ``latestOffset`` on a real broker: what it asks, and what it makes of it."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from bench.figures import Figure
from bench.pairs import Spread
from bench.scale import Scale
from bench.stage import Stage
from headrace.gate.kafka.kafka_options import parse_options
from headrace.gate.kafka.topic_log import KafkaLog
from headrace.gate.source.planner import StreamPlanner

VALUE_BYTES: Final = 100
ROWS_PER_PARTITION: Final = 20


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """A topic of many partitions, each with something to read."""
    partitions = scale.planner_partitions
    topic = stage.topics.random(partitions, partitions * ROWS_PER_PARTITION, VALUE_BYTES)
    options = {
        "kafka.bootstrap.servers": stage.topics.servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(partitions),
    }
    times_ms = []
    parsed = parse_options(options, streaming=True)
    with closing(StreamPlanner(KafkaLog(parsed), parsed.shared)) as planner:
        start = planner.advance(planner.initial(), everything=False)
        for _ in range(scale.repetitions):
            began_s = time.perf_counter()
            end = planner.advance(start, everything=False)
            times_ms.append((time.perf_counter() - began_s) * 1000)
            assert end != start, "there was nothing to plan"
    yield Figure(f"{partitions} partitions", "ms", Spread.of(times_ms))
