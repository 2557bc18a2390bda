"""A join of two topics, each behind a gate of its own.

    python examples/two_gates.py localhost:9092 orders payments out/

Each gate learns the rate of its own source: of a batch that was too long each gives back its share.
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace


def main() -> None:
    """Join what is there now, print the pairs, and end."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("kafka", help="host:port of a broker")
    arguments.add_argument("orders", help="a topic whose keys are order numbers")
    arguments.add_argument("payments", help="another with the same keys")
    arguments.add_argument("out", type=Path, help="a folder")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ledger = f"sqlite:///{options.out}/headrace.db"

    spark = headrace.configure(SparkSession.builder.appName("join")).getOrCreate()
    orders = headrace.Gate("orders", interval="2 seconds", ledger=ledger)
    payments = headrace.Gate("payments", interval="2 seconds", ledger=ledger)

    def read(gate: headrace.Gate, topic: str) -> DataFrame:
        return (
            gate.read(spark, "kafka")
            .option("kafka.bootstrap.servers", options.kafka)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .withWatermark("timestamp", "10 minutes")
            .select("key", F.col("value").alias(gate.name), "timestamp")
        )

    joined = read(orders, options.orders).join(
        read(payments, options.payments).drop("timestamp"), "key"
    )

    def write(df: DataFrame, batch: headrace.Batch) -> None:
        for row in df.collect():
            print(f"{bytes(row.key).decode()}: {bytes(row.orders)!r} {bytes(row.payments)!r}")

    query = (
        orders.write(joined, write)
        .option("checkpointLocation", f"{options.out}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
