"""Batches that are read again on Spark: each offset that is asked for, once, and no other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.journal.journals import fill
from tests.services.kafka import TopicFactory

import headrace
from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError, SourceError
from headrace.gate.execution.batch_reader import DerivedStream, SparkBatchReader
from headrace.gate.kafka.kafka_source import KAFKA
from headrace.gate.ledger.records import PlannedRange
from headrace.gate.source.connector import Connector
from headrace.journal.journal_source import JOURNAL

Place = tuple[int, int]

APART = [(0, 0, 1), (0, 3, 7), (0, 9, 10), (1, 2, 3), (1, 5, 6)]
"""Partition, start and end of ranges that are not adjacent."""


def planned(topic: str, ranges: Sequence[tuple[int, int, int]]) -> list[PlannedRange]:
    return [PlannedRange(OffsetRange(topic, *each)) for each in ranges]


def places(ranges: Sequence[PlannedRange]) -> list[Place]:
    offsets = [one.offsets for one in ranges]
    return sorted((r.partition, at) for r in offsets for at in range(r.start, r.until))


def read(reader: SparkBatchReader, ranges: Sequence[PlannedRange]) -> list[Place]:
    rows = list[Place]()

    def use(df: DataFrame) -> None:
        rows.extend((row.partition, row.offset) for row in df.collect())

    reader.run(ranges, use)
    return sorted(rows)


@pytest.fixture(params=["journal", "kafka"])
def of(
    request: pytest.FixtureRequest, spark: SparkSession, topic: TopicFactory, tmp_path: Path
) -> tuple[str, Connector, Mapping[str, str]]:
    """A source with ten records in each of two partitions: its topic, its kind, its options."""
    headrace.register(spark)
    if request.param == "journal":
        fill(tmp_path / "journal", {0: [4, 3, 3], 1: [10]})
        return "journal", JOURNAL, {"path": str(tmp_path / "journal")}
    orders = topic(partitions=2)
    for partition in range(2):
        orders.produce(*[b"an order"] * 10, partition=partition)
    return orders.name, KAFKA, {"kafka.bootstrap.servers": orders.bootstrap_servers}


@pytest.mark.parametrize("derived", [False, True])
def test_ranges_of_one_partition_that_are_not_adjacent_are_read_whole(
    spark: SparkSession, of: tuple[str, Connector, Mapping[str, str]], *, derived: bool
) -> None:
    topic, connector, options = of
    stream = spark.readStream.format(connector.format).options(**options)
    if connector is KAFKA:
        stream = stream.option("subscribe", topic)
    ranges = planned(topic, APART)
    reader = SparkBatchReader(
        spark,
        connector,
        options,
        DerivedStream(stream.load().filter("offset >= 0")) if derived else None,
    )
    try:
        assert read(reader, ranges) == places(ranges)
        with reader.persisted(ranges) as kept:
            for part in (ranges[1:2], ranges[:1] + ranges[3:], ranges):
                assert read(kept, part) == places(part)
        with pytest.raises(OptionError, match=r"\[3, 4\)"):
            read(reader, [*ranges, *planned(topic, [(0, 2, 4)])])
    finally:
        reader.close()


def test_a_dense_source_that_gives_fewer_records_than_offsets_is_no_success(
    spark: SparkSession, tmp_path: Path
) -> None:
    headrace.register(spark)
    fill(tmp_path / "journal", {0: [10]})
    options: Callable[..., dict[str, str]] = JOURNAL.replay_options
    narrowed = replace(
        JOURNAL, replay_options=lambda given, ranges: options(given, list(ranges)[-1:])
    )
    reader = SparkBatchReader(spark, narrowed, {"path": str(tmp_path / "journal")})
    with (
        pytest.raises(SourceError, match=r"gave 1 records, and there is one at each"),
        reader.persisted(planned("journal", [(0, 0, 4), (0, 9, 10)])),
    ):
        pass
