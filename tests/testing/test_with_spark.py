"""The harness with a Spark session: the handler receives a real data frame."""

from typing import Any

from pyspark.sql import SparkSession

from headrace import Batch
from headrace.gate.ledger.transitions import Status
from headrace.testing import Crash, MemoryLog, Record, StreamHarness

SEEN = "upper(CAST(value AS STRING)) AS value, headers[0].key AS header, timestamp"


def test_a_handler_has_spark_compute_and_what_was_derived_before(spark: SparkSession) -> None:
    kept: dict[str, list[tuple[str, str | None]]] = {}

    def handler(df: Any, batch: Batch) -> None:
        assert df.schema["timestamp"].dataType.typeName() == "timestamp"
        kept[batch.key] = [(row.value, row.header) for row in df.collect()]

    log = MemoryLog("a", Record(b"b", headers=(("h", b"1"),)), Crash(), None)
    with StreamHarness(
        handler,
        log,
        options={"includeHeaders": True, "maxOffsetsPerTrigger": 2},
        transform=lambda df: df.selectExpr(*SEEN.split(", ")),
        spark=spark,
    ) as stream:
        stream.run()
        assert stream.crashes == 1
        assert stream.statuses() == dict.fromkeys(range(3), Status.SUCCESS)
    assert list(kept.values()) == [[("A", None), ("B", "h")], [(None, None)]]
