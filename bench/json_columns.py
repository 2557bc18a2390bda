"""JSON parsed to columns and summed up: what a query does with its records, on both sides."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from pyspark.sql import functions

from bench.figures import AtLeast, Figure
from bench.pairs import in_turn
from bench.scale import Scale
from bench.sides import HEADRACE, NATIVE, bounded, seconds_to_discard
from bench.stage import Stage

PARTITIONS: Final = 4
ORDER_BYTES: Final = 230
SCHEMA: Final = (
    "order STRING, customer LONG, shop STRING, placed_at TIMESTAMP, items INT, amount DOUBLE,"
    " currency STRING, note STRING"
)
VALUE_ALONE: Final = "headrace-kafka, the value alone"
PROMISED: Final = AtLeast(1.0)


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """With all columns of the source, and with the value as all that is needed.

    Spark leaves out the columns that nobody uses where the native source is read. It does not tell
    a Python source, so that a user does, with a schema.
    """
    rows = scale.topic_bytes // ORDER_BYTES
    topic = stage.topics.orders(PARTITIONS, rows)
    rate = partial(_rate, stage, topic, rows)
    rates = in_turn(
        {
            NATIVE: partial(rate, NATIVE, None),
            HEADRACE: partial(rate, HEADRACE, None),
            VALUE_ALONE: partial(rate, HEADRACE, "value BINARY"),
        },
        scale.pairs,
        scale.warm_ups,
    )
    for side, words in ((HEADRACE, ""), (VALUE_ALONE, ", value alone")):
        yield Figure.side_by_side(
            f"orders summed up by shop{words}",
            "rows/s",
            headrace=rates[side],
            native=rates[NATIVE],
            target=PROMISED,
        )


def _rate(stage: Stage, topic: str, rows: int, source: str, schema: str | None) -> float:
    value = functions.col("value").cast("string")
    orders = bounded(stage, source, topic, schema).select(
        functions.from_json(value, SCHEMA).alias("order")
    )
    by_shop = orders.groupBy("order.shop").agg(
        functions.sum("order.amount"),
        functions.avg("order.items"),
        functions.max("order.placed_at"),
        functions.count_distinct("order.customer"),
    )
    return rows / seconds_to_discard(by_shop)
