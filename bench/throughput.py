"""Rows a second of a whole topic: Kafka into Spark, and nowhere from there."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from bench.figures import AtLeast, Figure, Target
from bench.pairs import in_turn
from bench.scale import Scale
from bench.sides import HEADRACE, NATIVE, bounded, seconds_to_discard, stream, stream_rate
from bench.stage import Stage
from headrace.core.native import ENGINE, Engine, native_engine

PARTITIONS: Final = 4
PROMISED_BYTES: Final = 200
PROMISED: Final = AtLeast(1.0)
PROMISED_NATIVELY: Final = {100: AtLeast(2.0), 200: AtLeast(2.7), 2_000: AtLeast(2.3)}
"""Targets of the native engine, by the size of a record (bytes)."""


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Bounded reads of small, usual and large records; one column alone; and a stream."""
    for value_bytes in scale.value_bytes:
        rows = scale.topic_bytes // value_bytes
        topic = stage.topics.random(PARTITIONS, rows, value_bytes)
        yield from _compared(
            f"{value_bytes}-byte records",
            scale,
            partial(_bounded_rate, stage, topic, rows),
            PROMISED if value_bytes == PROMISED_BYTES else None,
            PROMISED_NATIVELY.get(value_bytes),
        )
    rows = scale.topic_bytes // PROMISED_BYTES
    topic = stage.topics.random(PARTITIONS, rows, PROMISED_BYTES)
    yield from _compared(
        f"{PROMISED_BYTES}-byte records, value alone",
        scale,
        partial(_value_rate, stage, topic, rows),
    )
    yield from _compared(
        f"{PROMISED_BYTES}-byte records, as a stream",
        scale,
        partial(_stream_rate, stage, topic, rows),
        PROMISED,
    )


def _compared(
    name: str,
    scale: Scale,
    rate: Callable[[str, Engine], float],
    target: Target | None = None,
    native_target: Target | None = None,
) -> Iterator[Figure]:
    """Compare each engine of Headrace that is installed with Spark's connector."""
    engines = {Engine.PYTHON: ("", target)}
    if native_engine() is not None:
        engines[Engine.NATIVE] = (", by the native engine", native_target)
    sides: dict[str, Callable[[], float]] = {NATIVE: partial(rate, NATIVE, Engine.PYTHON)}
    sides |= {f"{HEADRACE}, {each}": partial(rate, HEADRACE, each) for each in engines}
    rates = in_turn(sides, scale.pairs, scale.warm_ups)
    for engine, (words, promised) in engines.items():
        yield Figure.side_by_side(
            f"{name}{words}",
            "rows/s",
            headrace=rates[f"{HEADRACE}, {engine}"],
            native=rates[NATIVE],
            target=promised,
        )


def _options(source: str, engine: Engine) -> dict[str, object]:
    return {ENGINE: engine} if source == HEADRACE else {}


def _bounded_rate(stage: Stage, topic: str, rows: int, source: str, engine: Engine) -> float:
    df = bounded(stage, source, topic, options=_options(source, engine))
    return rows / seconds_to_discard(df)


def _value_rate(stage: Stage, topic: str, rows: int, source: str, engine: Engine) -> float:
    """As each is asked to leave the other columns out: Spark asks only the native source itself."""
    schema = "value BINARY" if source == HEADRACE else None
    df = bounded(stage, source, topic, schema, _options(source, engine))
    return rows / seconds_to_discard(df.select("value"))


def _stream_rate(stage: Stage, topic: str, rows: int, source: str, engine: Engine) -> float:
    return stream_rate(stage, stream(stage, source, topic, _options(source, engine)), rows)
