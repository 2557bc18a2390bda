"""A query of Spark's own Kafka source, with nothing changed but its format.

    python examples/only_the_format.py localhost:9092 orders out/

Without a gate the source has the native one's options, columns and limits. It can go on from the
native one's checkpoint, too.
"""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

import headrace


def main() -> None:
    """Copy what is there now into Parquet, and end."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("kafka", help="host:port of a broker")
    arguments.add_argument("topic")
    arguments.add_argument("out", type=Path, help="a folder")
    options = arguments.parse_args()

    spark = headrace.configure(SparkSession.builder.appName("copy")).getOrCreate()
    headrace.register(spark)
    records = (
        spark.readStream.format("headrace-kafka")  # was: "kafka"
        .option("kafka.bootstrap.servers", options.kafka)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50_000)
        .load()
    )
    query = (
        records.writeStream.format("parquet")
        .option("path", f"{options.out}/records")
        .option("checkpointLocation", f"{options.out}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(f"{spark.read.parquet(f'{options.out}/records').count()} records")


if __name__ == "__main__":
    main()
