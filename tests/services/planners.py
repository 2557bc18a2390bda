"""Planners of streams, to test without Spark what each batch will read."""

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from tests.services.kafka import Topic

from headrace.core.ranges import OffsetRange
from headrace.core.timing import Clock
from headrace.gate.kafka.kafka_options import parse_options
from headrace.gate.kafka.topic_log import KafkaLog
from headrace.gate.source.planner import StreamPlanner


def planner_of(
    topic: Topic, options: Mapping[str, object] | None = None, clock: Clock = time
) -> closing[StreamPlanner]:
    """A planner of one topic from its beginning, unless the options say otherwise."""
    given = {"kafka.bootstrap.servers": topic.bootstrap_servers, "startingOffsets": "earliest"}
    if not options or not {"assign", "subscribePattern"} & options.keys():
        given["subscribe"] = topic.name
    given |= {name: str(value) for name, value in (options or {}).items()}
    parsed = parse_options(given, streaming=True)
    return closing(StreamPlanner(KafkaLog(parsed), parsed.shared, clock))


def gated(url: str, **options: object) -> dict[str, object]:
    """Options of a gate whose first batch is of 100 records at most."""
    return {
        "headrace.gate": "orders",
        "headrace.ledger": url,
        "headrace.interval": "1 second",
        "backpressure.initialRate": 100,
        **options,
    }


def next_batch(
    planner: StreamPlanner, start: dict[str, Any]
) -> tuple[dict[str, Any], list[OffsetRange]]:
    """Plan and begin the next batch, as Spark does: its end, and what it reads."""
    end = planner.advance(start, everything=False)
    return end, [] if end == start else list(planner.begin(start, end).ranges)
