"""Queries with state for stories of crashes: how each derives, and the results it must have."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import (
    DataFrame,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.recovery.job import Job

PARTITION: Final = "substring_index(cast(value AS string), '/', 1)"
"""The partition of a record, by its value."""

COUNTED: Final = "cast(concat(partition, '=', count) AS binary) AS value"


class Count(StatefulProcessor):
    """Counts the records of each partition."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], _timers: Any) -> Iterator[Any]:
        count = (self._count.get() or (0,))[0] + sum(len(part) for part in rows)
        self._count.update((count,))
        yield pd.DataFrame({"partition": [key[0]], "count": [count]})

    def close(self) -> None:
        """Keep nothing."""


def counted(df: DataFrame, _job: Job) -> DataFrame:
    """Return the records of each partition in windows of ten years."""
    window = F.window("timestamp", "3650 days")
    return df.groupBy(window, F.expr(PARTITION).alias("partition")).count().selectExpr(COUNTED)


def deduplicated(df: DataFrame, _job: Job) -> DataFrame:
    """Return each value once."""
    return df.dropDuplicates(["value"])


def joined(df: DataFrame, job: Job) -> DataFrame:
    """Return each record that a second stream of the same topic has, too."""
    other = df.sparkSession.readStream.format("headrace-kafka")
    other = other.option("kafka.bootstrap.servers", job.servers).option("subscribe", job.topic)
    values = other.option("startingOffsets", "earliest").load().select("value")
    return df.join(values, "value").select("value")


def transformed(df: DataFrame, _job: Job) -> DataFrame:
    """Return the records of each partition, counted by a processor of our own."""
    grouped = df.select(F.expr(PARTITION).alias("partition")).groupBy("partition")
    counts = grouped.transformWithStateInPandas(
        Count(), "partition STRING, count LONG", "Update", "None"
    )
    return counts.selectExpr(COUNTED)


def faults_of_counts(arrived: Sequence[str], partitions: int, records: int) -> list[str]:
    """Return what is wrong with counts: each rises to the number of records, and is there once."""
    counts: dict[str, list[int]] = {str(number): [] for number in range(partitions)}
    for value in arrived:
        partition, _, count = value.partition("=")
        counts[partition].append(int(count))
    return [
        f"partition {partition} was counted {found}"
        for partition, found in counts.items()
        if found != sorted(set(found)) or found[-1:] != [records]
    ]


def faults_of_values(arrived: Sequence[str], partitions: int, records: int) -> list[str]:
    """Return what is wrong with values: each is there once."""
    times = Counter(arrived)
    wanted = {f"{partition}/{place}" for partition in range(partitions) for place in range(records)}
    return [f"{value} is there {times[value]} times" for value in wanted if times[value] != 1]


@dataclass(frozen=True)
class State:
    """A query with state.

    Attributes:
        derive: What it computes of what the gate reads.
        mode: Its output mode.
        faults: What is wrong with the values that arrived, in the order of their batches.
    """

    derive: Callable[[DataFrame, Job], DataFrame]
    mode: str
    faults: Callable[[Sequence[str], int, int], list[str]]


STATES: Final = {
    "count": State(counted, "update", faults_of_counts),
    "deduplicate": State(deduplicated, "append", faults_of_values),
    "join": State(joined, "append", faults_of_values),
    "transform": State(transformed, "update", faults_of_counts),
}
