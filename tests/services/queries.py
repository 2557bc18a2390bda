"""Streaming queries that keep what they read, for tests."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.services.kafka import Topic
from tests.services.waiting import wait_until

import headrace


def stream_of(
    spark: SparkSession,
    topic: Topic,
    options: Mapping[str, object] | None = None,
    source: str = "headrace-kafka",
) -> DataFrame:
    """A stream of one topic from its beginning, unless the options say otherwise."""
    headrace.register(spark)
    given: dict[str, object] = {
        "kafka.bootstrap.servers": topic.bootstrap_servers,
        "startingOffsets": "earliest",
        **(options or {}),
    }
    if not {"assign", "subscribePattern"} & given.keys():
        given.setdefault("subscribe", topic.name)
    reader = spark.readStream.format(source)
    return reader.options(**{name: str(value) for name, value in given.items()}).load()


def sentence(error: BaseException) -> str:
    """Headrace's own line in an error of Spark's, which ends the traceback of Python's side."""
    lines = re.findall(r"^headrace\.errors\.(.*)$", str(error), flags=re.MULTILINE)
    assert len(set(lines)) == 1, str(error)
    return str(lines[0])


@dataclass
class Collected:
    """Rows that a query has read so far."""

    query: StreamingQuery
    batches: list[list[Row]] = field(default_factory=list)
    """The rows of each batch, in the order the batches ran."""

    @property
    def rows(self) -> list[Row]:
        return [row for batch in list(self.batches) for row in batch]

    @property
    def values(self) -> list[str]:
        """The values of all rows, sorted."""
        return sorted(row.value.decode() for row in self.rows)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]

    def last_offset(self, which: Literal["endOffset", "latestOffset"]) -> dict[str, Any]:
        """An offset of the first source in the last progress, without the keys that begin with @;
        empty before the first progress."""
        progress = self.query.lastProgress
        offset = json.loads(getattr(progress.sources[0], which)) if progress else {}
        return {key: value for key, value in offset.items() if not key.startswith("@")}

    def wait_for(self, condition: Callable[["Collected"], Any]) -> None:
        """Return when the condition holds; an exception that stops the query is raised here."""

        def holds() -> bool:
            error = self.query.exception()
            if error is not None:
                raise error
            return bool(condition(self))

        wait_until(holds)


@contextmanager
def running(
    df: DataFrame,
    checkpoint: Path,
    during: Callable[[int], object] = lambda _: None,
    **trigger: Any,
) -> Iterator[Collected]:
    """Run a query until the block ends. Default trigger: at once again after each batch.

    ``during`` is called with a batch's number while the batch runs, before its rows count.
    """

    def collect(batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        during(number)
        batches.append(rows)

    batches: list[list[Row]] = []
    writer = df.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
    try:
        yield Collected(query, batches)
    finally:
        query.stop()


def available_now(
    df: DataFrame, checkpoint: Path, during: Callable[[int], object] = lambda _: None
) -> Collected:
    """Run a query with ``Trigger.AvailableNow`` to its end; raises what stopped it."""
    with running(df, checkpoint, during, availableNow=True) as collected:
        assert collected.query.awaitTermination(120), "the query did not end"
    return collected
