"""A bounded read: how many records each partition was given since a time, and how large they are.

python examples/bounded_read.py localhost:9092 orders --since 2026-01-31T12:00:00+00:00
"""

import argparse
from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace


def main() -> None:
    """Read from that time to now, and end."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("kafka", help="host:port of a broker")
    arguments.add_argument("topic")
    arguments.add_argument("--since", type=datetime.fromisoformat, required=True)
    options = arguments.parse_args()

    spark = headrace.configure(SparkSession.builder.appName("since")).getOrCreate()
    headrace.register(spark)
    records = (
        spark.read.format("headrace-kafka")
        .option("kafka.bootstrap.servers", options.kafka)
        .option("subscribe", options.topic)
        .option("startingTimestamp", int(options.since.timestamp() * 1000))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .load()
    )
    per_partition = (
        records.groupBy("partition")
        .agg(F.count("*").alias("records"), F.avg(F.length("value")).alias("mean_bytes"))
        .orderBy("partition")
    )
    for row in per_partition.collect():
        print(f"partition {row.partition}: {row.records} records of {row.mean_bytes:.0f} bytes")


if __name__ == "__main__":
    main()
