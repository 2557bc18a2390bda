"""A program over Spark Connect, which reads a topic in sessions that are made of its own.

    python -m tests.compat.sessions REMOTE BROKER TOPIC FOLDER

Each session has a query behind a gate of its own, and one whose gate is an option. It prints the
error of a session in which Headrace was not registered.
"""

import sys
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.services.waiting import wait_until

import headrace
from headrace.gate.ledger.ledger import Ledger


def nothing(_df: DataFrame, _batch: headrace.Batch) -> None:
    """Read nothing, so that the server needs no module of the tests."""


def all_have_ended(ledger: Ledger) -> bool:
    """Whether the ledger has the end of each query."""
    return all(gate.ended is not None for gate in ledger.gates.all())


def main(remote: str, broker: str, topic: str, folder: str) -> None:
    """Run two queries in each session."""
    spark: Any = SparkSession.builder.remote(remote).getOrCreate()
    url = f"sqlite:///{folder}/headrace.db"
    options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "startingOffsets": "earliest"}
    headrace.register(spark)
    fresh = spark.newSession()
    try:
        fresh.readStream.format("headrace-kafka").options(**options).load().printSchema()
    except PySparkException as error:
        print(error.getMessage().splitlines()[0])  # noqa: T201
    for name, session in {"origin": spark, "clone": spark.cloneSession(), "new": fresh}.items():
        gate = headrace.Gate(name, interval="1 second", ledger=url)
        df = gate.read(session, "kafka").options(**options).load()
        writer = gate.write(df, nothing).option("checkpointLocation", f"{folder}/{name}")
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        headrace.register(session, ledger=url)
        bare = {"headrace.gate": f"{name}-bare", "headrace.ledger": url}
        pace = {"headrace.interval": "1 second"}
        reader = session.readStream.format("headrace-kafka").options(**options | bare | pace)
        stream = reader.load().writeStream.format("noop").trigger(availableNow=True)
        stream = stream.option("checkpointLocation", f"{folder}/{name}-bare")
        assert stream.start().awaitTermination(120)
        with Ledger.open(url) as ledger:
            wait_until(partial(ledger.rates.history, f"{name}-bare"), 30)
            wait_until(partial(all_have_ended, ledger), 30)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
