"""Orders from Kafka, as fast as this job can take them, into Parquet: each batch once.

    python examples/gated_orders.py localhost:9092 orders out/

The folder of a batch is named by its key, which is the same whenever the batch is run again after a
crash: what a first, interrupted run wrote is written over, and no order is there twice.
"""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace

ORDER = "id LONG, customer STRING, amount DOUBLE"


def main() -> None:
    """Process what is there now, in batches of about a second, and end."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("kafka", help="host:port of a broker")
    arguments.add_argument("topic")
    arguments.add_argument("out", type=Path, help="a folder")
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    spark = headrace.configure(SparkSession.builder.appName("orders")).getOrCreate()
    gate = headrace.Gate(
        "orders", interval="1 second", ledger=f"sqlite:///{options.out}/headrace.db"
    )
    orders = (
        gate.read(spark, "kafka")
        .option("kafka.bootstrap.servers", options.kafka)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), ORDER).alias("order"))
        .select("order.*")
    )

    def write(df: DataFrame, batch: headrace.Batch) -> None:
        df.write.mode("overwrite").parquet(f"{options.out}/orders/batch={batch.key}")
        print(f"batch {batch.key}: {sum(r.count for r in batch.ranges)} offsets")

    query = (
        gate.write(orders, write)
        .option("checkpointLocation", f"{options.out}/checkpoint")
        .trigger(availableNow=True)  # leave this out to go on for ever
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
