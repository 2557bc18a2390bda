"""JSON parsed to columns and summed up: what a query does with its records, on both sides."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, functions

import headrace
from bench.figures import AtLeast, Figure
from bench.pairs import in_turn
from bench.scale import Scale
from bench.sides import HEADRACE, NATIVE, bounded, seconds_to_discard
from bench.stage import Stage
from headrace.core.native import ENGINE, Engine, native_engine
from headrace.decoding.formats import option_text

PARTITIONS: Final = 4
ORDER_BYTES: Final = 230
SCHEMA: Final = (
    "order STRING, customer LONG, shop STRING, placed_at TIMESTAMP, items INT, amount DOUBLE,"
    " currency STRING, note STRING"
)
VALUE_ALONE: Final = "headrace-kafka, the value alone"
DECODED: Final = "headrace-kafka, decoded where it is read"
DECODED_NATIVELY: Final = "headrace-kafka, decoded where it is read, by the native engine"
USED: Final = (
    "value STRUCT<customer: BIGINT, shop: STRING, placed_at: TIMESTAMP, items: INT, amount: DOUBLE>"
)
PROMISED: Final = AtLeast(1.0)
PROMISED_DECODED: Final = AtLeast(2.2)
PROMISED_DECODED_NATIVELY: Final = AtLeast(5.0)


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """With all columns of the source, with the value alone, and decoded by the source.

    Spark leaves out the columns that nobody uses where the native source is read. It does not tell
    a Python source, so that a user does, with a schema.
    """
    rows = scale.topic_bytes // ORDER_BYTES
    topic = stage.topics.orders(PARTITIONS, rows)
    rate = partial(_rate, stage, topic, rows)
    decoded = partial(_decoded_rate, stage, topic, rows)
    sides = {
        NATIVE: partial(rate, NATIVE, None),
        HEADRACE: partial(rate, HEADRACE, None),
        VALUE_ALONE: partial(rate, HEADRACE, "value BINARY"),
        DECODED: partial(decoded, Engine.PYTHON),
    }
    figures = [
        (HEADRACE, "", PROMISED),
        (VALUE_ALONE, ", value alone", PROMISED),
        (DECODED, ", decoded where they are read", PROMISED_DECODED),
    ]
    if native_engine() is not None:
        sides[DECODED_NATIVELY] = partial(decoded, Engine.NATIVE)
        words = ", decoded where they are read by the native engine"
        figures.append((DECODED_NATIVELY, words, PROMISED_DECODED_NATIVELY))
    rates = in_turn(sides, scale.pairs, scale.warm_ups)
    for side, words, promised in figures:
        yield Figure.side_by_side(
            f"orders summed up by shop{words}",
            "rows/s",
            headrace=rates[side],
            native=rates[NATIVE],
            target=promised,
        )


def _rate(stage: Stage, topic: str, rows: int, source: str, schema: str | None) -> float:
    value = functions.col("value").cast("string")
    options = {ENGINE: Engine.PYTHON} if source == HEADRACE else None
    orders = bounded(stage, source, topic, schema, options).select(
        functions.from_json(value, SCHEMA).alias("order")
    )
    return rows / seconds_to_discard(_by_shop(orders))


def _decoded_rate(stage: Stage, topic: str, rows: int, engine: Engine) -> float:
    options = {"decode": option_text(headrace.json(SCHEMA), stage.spark), ENGINE: engine}
    orders = bounded(stage, HEADRACE, topic, USED, options).withColumnRenamed("value", "order")
    return rows / seconds_to_discard(_by_shop(orders))


def _by_shop(orders: DataFrame) -> DataFrame:
    return orders.groupBy("order.shop").agg(
        functions.sum("order.amount"),
        functions.avg("order.items"),
        functions.max("order.placed_at"),
        functions.count_distinct("order.customer"),
    )
