"""Rows a second of a whole topic: Kafka into Spark, and nowhere from there."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from bench.figures import AtLeast, Figure, Target
from bench.pairs import in_turn
from bench.scale import Scale
from bench.sides import HEADRACE, NATIVE, bounded, seconds_to_discard, stream, stream_rate
from bench.stage import Stage

PARTITIONS: Final = 4
PROMISED_BYTES: Final = 200
PROMISED: Final = AtLeast(1.0)


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Bounded reads of small, usual and large records; one column alone; and a stream."""
    for value_bytes in scale.value_bytes:
        rows = scale.topic_bytes // value_bytes
        topic = stage.topics.random(PARTITIONS, rows, value_bytes)
        yield _compared(
            f"{value_bytes}-byte records",
            scale,
            headrace=partial(_bounded_rate, stage, HEADRACE, topic, rows),
            native=partial(_bounded_rate, stage, NATIVE, topic, rows),
            target=PROMISED if value_bytes == PROMISED_BYTES else None,
        )
    rows = scale.topic_bytes // PROMISED_BYTES
    topic = stage.topics.random(PARTITIONS, rows, PROMISED_BYTES)
    yield _compared(
        f"{PROMISED_BYTES}-byte records, value alone",
        scale,
        headrace=partial(_value_rate, stage, HEADRACE, topic, rows),
        native=partial(_value_rate, stage, NATIVE, topic, rows),
    )
    yield _compared(
        f"{PROMISED_BYTES}-byte records, as a stream",
        scale,
        headrace=lambda: stream_rate(stage, stream(stage, HEADRACE, topic), rows),
        native=lambda: stream_rate(stage, stream(stage, NATIVE, topic), rows),
        target=PROMISED,
    )


def _compared(
    name: str,
    scale: Scale,
    *,
    headrace: Callable[[], float],
    native: Callable[[], float],
    target: Target | None = None,
) -> Figure:
    rates = in_turn({NATIVE: native, HEADRACE: headrace}, scale.pairs, scale.warm_ups)
    return Figure.side_by_side(
        name, "rows/s", headrace=rates[HEADRACE], native=rates[NATIVE], target=target
    )


def _bounded_rate(stage: Stage, source: str, topic: str, rows: int) -> float:
    return rows / seconds_to_discard(bounded(stage, source, topic))


def _value_rate(stage: Stage, source: str, topic: str, rows: int) -> float:
    """As each is asked to leave the other columns out: Spark asks only the native source itself."""
    schema = "value BINARY" if source == HEADRACE else None
    return rows / seconds_to_discard(bounded(stage, source, topic, schema).select("value"))
