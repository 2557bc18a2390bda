"""Decoding records beside reading them raw; and what one bad record costs a batch."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa
from pyspark.sql import (
    DataFrame,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)

import headrace
from bench.figures import AtLeast, Figure
from bench.pairs import in_turn
from bench.scale import Scale
from bench.sides import HEADRACE, bounded, discard, gated_stream, running, seconds_to_discard
from bench.stage import Stage
from bench.topics import order_values
from headrace.decoding.formats import Format, option_text
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate

PARTITIONS: Final = 4
ROWS: Final = 400_000
PLACED: Final = ("topic", "partition", "offset", "value")
PROMISED: Final = AtLeast(0.8)
RAW: Final = "raw"

BATCH_ROWS: Final = 7_131
BAD: Final = b"this is no order"

DDL: Final = (
    "order STRING NOT NULL, customer BIGINT NOT NULL, shop STRING, placed_at STRING, items INT,"
    " amount DOUBLE, currency STRING, note STRING"
)
AVRO: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order", "type": "string"},
        {"name": "customer", "type": "long"},
        *({"name": name, "type": ["null", "string"]} for name in ("shop", "placed_at")),
        {"name": "items", "type": ["null", "int"]},
        {"name": "amount", "type": ["null", "double"]},
        *({"name": name, "type": ["null", "string"]} for name in ("currency", "note")),
    ],
}


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """JSON and Avro against the same topic read raw; then the bad record."""
    rows = min(ROWS, scale.topic_bytes // 200)
    orders = stage.topics.orders(PARTITIONS, rows)
    records = stage.topics.filled(PARTITIONS, rows, "avro", avro_orders())
    for name, topic, decode in (
        ("JSON, 230 bytes", orders, _msgspec),
        ("JSON, value and place alone", orders, lambda df: _msgspec(df.select(*PLACED))),
        ("JSON, by Spark's from_json", orders, _from_json),
        ("to Python and back, untouched", orders, lambda df: df.mapInArrow(_same, df.schema)),
        ("Avro, 90 bytes", records, _avro),
    ):
        rate = partial(_rate, stage, topic, rows)
        rates = in_turn(
            {RAW: partial(rate, lambda df: df), HEADRACE: partial(rate, decode)},
            scale.pairs,
            scale.warm_ups,
        )
        yield Figure.side_by_side(
            name, "rows/s", headrace=rates[HEADRACE], native=rates[RAW], target=PROMISED
        )
    yield _by_the_source(stage, scale, orders, records, rows)
    yield _one_bad_record(stage, scale)


def _by_the_source(stage: Stage, scale: Scale, orders: str, records: str, rows: int) -> Figure:
    """Avro beside JSON, each decoded in the tasks that read it."""
    avro: Format = headrace.avro(json.dumps(AVRO))
    sides = {
        HEADRACE: partial(_decoded_rate, stage, records, rows, avro),
        RAW: partial(_decoded_rate, stage, orders, rows, headrace.json(DDL)),
    }
    rates = in_turn(sides, scale.pairs, scale.warm_ups)
    return Figure.side_by_side(
        "Avro decoded where it is read, beside JSON",
        "rows/s",
        headrace=rates[HEADRACE],
        native=rates[RAW],
        target=PROMISED,
    )


def _decoded_rate(stage: Stage, topic: str, rows: int, form: Format) -> float:
    options = {"decode": option_text(form, stage.spark)}
    return rows / seconds_to_discard(bounded(stage, HEADRACE, topic, None, options))


def avro_orders() -> list[bytes]:
    """The same orders as `bench.topics.order_values`, as Avro."""
    schema, found = fastavro.parse_schema(AVRO), []
    for value in order_values():
        stream = BytesIO()
        fastavro.schemaless_writer(stream, schema, json.loads(value))
        found.append(stream.getvalue())
    return found


Decode = Callable[[DataFrame], DataFrame]


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _msgspec(df: DataFrame) -> DataFrame:
    return headrace.decode(df, headrace.json(DDL))


def _avro(df: DataFrame) -> DataFrame:
    form: Format = headrace.avro(json.dumps(AVRO))
    return headrace.decode(df, form)


def _from_json(df: DataFrame) -> DataFrame:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    parsed = F.from_json(F.col("value").cast("string"), f"{DDL}, bad STRING", options)
    return df.withColumn("value", parsed).where("value.bad IS NULL")


def _rate(stage: Stage, topic: str, rows: int, decode: Decode) -> float:
    """Rows a second of the whole topic."""
    return rows / seconds_to_discard(decode(bounded(stage, HEADRACE, topic)))


def _one_bad_record(stage: Stage, scale: Scale) -> Figure:
    """Measure the time that one bad record adds to the handler and its batch (ms)."""
    good = stage.topics.orders(1, BATCH_ROWS)
    with_bad = stage.topics.filled(1, BATCH_ROWS, "one-bad", _one_bad())
    times_ms = in_turn(
        {RAW: partial(_batch_ms, stage, good), HEADRACE: partial(_batch_ms, stage, with_bad)},
        scale.pairs,
        scale.warm_ups,
    )
    costs = [a - b for a, b in zip(times_ms[HEADRACE], times_ms[RAW], strict=True)]
    return Figure.side_by_side(
        f"batch of {BATCH_ROWS}, one bad",
        "ms",
        headrace=times_ms[HEADRACE],
        native=times_ms[RAW],
        details={"the bad record costs (ms)": costs},
    )


def _one_bad() -> list[bytes]:
    values = order_values()
    whole = [values[number % len(values)] for number in range(BATCH_ROWS)]
    whole[BATCH_ROWS // 2] = BAD
    return whole


def _batch_ms(stage: Stage, topic: str) -> float:
    """The time of the trigger of one gated batch, which is the whole topic."""
    gate = Gate("decoding", interval="1 second", ledger=stage.fresh_ledger())
    form = option_text(headrace.json(DDL), stage.spark)
    options = {"backpressure.initialRate": 10 * BATCH_ROWS, "decode": form}
    df = gated_stream(stage, gate, topic, options)

    def handler(df: DataFrame, _batch: Batch) -> None:
        discard(df)

    writer = gate.write(df, handler).trigger(availableNow=True)
    with running(writer, stage.fresh_folder("checkpoint")) as query:
        query.awaitTermination()
        progress: Any = [each for each in query.recentProgress if each.numInputRows]
    return float(sum(each.durationMs["triggerExecution"] for each in progress))
