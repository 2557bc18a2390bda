"""Orders from Kafka into Delta Lake, each once, and a count of each minute; bad ones put aside.

Run it: python orders_into_delta.py localhost:9092 orders
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace

ORDER = headrace.json("id BIGINT NOT NULL, customer STRING NOT NULL, amount DOUBLE NOT NULL")
DELTA = {
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",  # of Spark 4.2
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def write(df: DataFrame, batch: headrace.Batch) -> None:
    """Append a batch and the counts of its minutes, each under the batch's key."""
    orders = df.where("value IS NOT NULL").select("timestamp", "value.*").persist()
    minutes = orders.groupBy(F.window("timestamp", "1 minute").start.alias("minute"))
    # Several batches may count the same minute: its rows add up.
    append(orders, "lake/orders", batch.delta_options())
    append(minutes.agg(F.count("*").alias("orders")), "lake/per_minute", batch.delta_options("n"))
    orders.unpersist()


def append(df: DataFrame, table: str, options: dict[str, str]) -> None:
    """Append rows to a table; Delta skips those that it has under these options."""
    df.write.format("delta").mode("append").options(**options).save(table)


def main(kafka: str, topic: str) -> None:
    """Process what is there now, in batches of about a second, and end."""
    builder = SparkSession.builder.appName("orders").config(map={**DELTA})
    spark = headrace.configure(builder).getOrCreate()
    gate = headrace.Gate("orders", interval="1 second", ledger="sqlite:///headrace.db")
    source = gate.read(spark, "kafka", decode=ORDER).option("kafka.bootstrap.servers", kafka)
    orders = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    query = (
        gate.write(orders, write, on_failure=headrace.retry(2, then="defer"))
        .option("checkpointLocation", "checkpoints/orders")
        .trigger(availableNow=True)  # leave this out to go on for ever
        .start()
    )
    query.awaitTermination()
    per_minute = spark.read.format("delta").load("lake/per_minute").groupBy("minute")
    per_minute.sum("orders").orderBy("minute").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
