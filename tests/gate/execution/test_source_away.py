"""A source that is away for a moment, while a batch is isolated; with a broker that is stopped."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from tests.gate.execution.queries import finish, read
from tests.services.kafka import Topic, Topics

import headrace
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.operate.local import Java, KafkaBroker, kafka_server_jars


@pytest.fixture
def own_broker(java: Java) -> Iterator[KafkaBroker]:
    """A broker that the test may stop."""
    with KafkaBroker(java, kafka_server_jars(java)) as running:
        yield running


def asked(folder: Path, question: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(folder / "headrace.db") as file:
        return list(file.execute(question))


def sent(broker: KafkaBroker) -> Topic:
    """Four records, of which the last one cannot be processed."""
    orders = Topics(broker.bootstrap_servers).create(1)
    orders.produce(b"x", b"x", b"x", b"bad")
    return orders


@pytest.mark.soak
def test_an_outage_while_a_record_stands_alone_makes_no_dead_letter_of_it(
    own_broker: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    orders, handled, outages = sent(own_broker), list[int](), list[str]()
    gate = Gate("orders", interval="1 second", ledger=f"sqlite:///{tmp_path}/headrace.db")

    def handle(df: DataFrame, batch: Batch) -> None:
        alone = sum(r.count for r in batch.ranges) == 1
        if alone and not outages:
            outages.append(batch.key)
            own_broker.stop()
            try:
                df.collect()
            finally:
                own_broker.start()
        rows = df.collect()
        if any(bytes(row.value) == b"bad" for row in rows):
            raise ValueError("this is no order")
        handled.extend(row.offset for row in rows)

    options = {"fetchOffset.numRetries": 0, "kafkaConsumer.pollTimeoutMs": 2_000}
    # Derived, so that its parts are read again: what is read as it is, is read once.
    df = read(gate, spark, orders, **options).withColumn("shop", lit("north"))
    writer = gate.write(df, handle, on_failure=headrace.isolate(), backfill="manual")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    finish(writer.trigger(availableNow=True).start())
    assert outages
    assert asked(tmp_path, "SELECT offset, error_message FROM dead_letter") == []
    left = asked(
        tmp_path,
        "SELECT start_offset, until_offset, error_class FROM batch JOIN batch_range USING"
        " (batch_key) WHERE status = 'failed' ORDER BY 1",
    )
    assert left == [(n, n + 1, "headrace.errors.BrokerError") for n in (2, 3)]
    assert handled == [0, 1]
