"""Real gated queries that process what is there and end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.services.kafka import Topic
from tests.services.waiting import wait_until

from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

DEADLINE_S = 180
"""Below the limit of a whole test, which would not say what was waited for."""


@dataclass
class Handled:
    """A handler that keeps what it is given; ``fails`` says for which batches it raises."""

    fails: Callable[[Batch], bool] = lambda _batch: False
    batches: list[Batch] = field(default_factory=list)
    records: list[tuple[str, int, int]] = field(default_factory=list)

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        self.batches.append(batch)
        if self.fails(batch):
            raise ValueError("the sink is full")
        rows = df.select("topic", "partition", "offset").collect()
        self.records += [(row.topic, row.partition, row.offset) for row in rows]


def everything_in(*topics: tuple[Topic, int]) -> list[tuple[str, int, int]]:
    """Each record of partition 0 of these topics, which have so many there."""
    return [(topic.name, 0, offset) for topic, count in topics for offset in range(count)]


def read(gate: Gate, spark: SparkSession, topic: Topic, **options: object) -> DataFrame:
    """A gated stream of a topic, from its beginning unless the options say otherwise.

    ``schema`` chooses columns.
    """
    schema = options.pop("schema", None)
    given = {
        "kafka.bootstrap.servers": topic.bootstrap_servers,
        "subscribe": topic.name,
        "startingOffsets": "earliest",
    }
    chosen = {name: str(value) for name, value in options.items()}
    columns = None if schema is None else str(schema)
    return gate.read(spark, "kafka").options(**(given | chosen)).load(schema=columns)


def write(
    gate: Gate, df: DataFrame, handler: Callable[[DataFrame, Batch], None], checkpoint: Path
) -> StreamingQuery:
    """Start the gated query on what is there now."""
    writer = gate.write(df, handler).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def finish(query: StreamingQuery) -> None:
    """Wait for a query's end; its exception is raised here."""
    assert query.awaitTermination(DEADLINE_S), f"the query {query.name} did not end"


def wait_until_reported(ledger: Ledger, gate: str) -> None:
    """Wait until the last batch's report has been taken in, which comes when it has ended."""

    def reported() -> bool:
        last, samples = ledger.batches.newest(gate, 1), ledger.rates.history(gate, limit=1)
        return bool(last and samples and samples[0].batch_key == last[0].batch_key)

    wait_until(reported)


def statuses(ledger: Ledger, gate: str) -> list[Status]:
    """A gate's batches, oldest first."""
    return [batch.status for batch in reversed(ledger.batches.newest(gate))]


def wait_until_statuses(ledger: Ledger, gate: str, *expected: Status) -> None:
    """Wait until a gate's batches, oldest first, are at these."""
    wait_until(lambda: statuses(ledger, gate) == list(expected), DEADLINE_S)
