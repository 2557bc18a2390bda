"""The driver of the deployment: counts the orders of each batch, and keeps them as Parquet.

It reads the journal of the receivers, or a topic where ``BROKERS`` names brokers. Replace the
handler with yours; what the environment has to say is in ``deploy/README.md``.
"""

import os

from pyspark.sql import DataFrame, SparkSession

import headrace


def handler(df: DataFrame, batch: headrace.Batch) -> None:
    """Write a batch under its key, so that another run of it replaces it."""
    df.write.mode("overwrite").parquet(f"{os.environ['OUTPUT']}/batch={batch.key}")
    print(f"{batch.key}: {df.count()} orders", flush=True)


def main() -> None:
    """Run until the query ends."""
    spark = headrace.configure(SparkSession.builder.appName("orders")).getOrCreate()
    gate = headrace.Gate("orders", interval="1 second", ledger=os.environ["HEADRACE_LEDGER"])
    if brokers := os.environ.get("BROKERS"):
        reader = gate.read(spark, "kafka").option("kafka.bootstrap.servers", brokers)
        orders = reader.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    else:
        orders = gate.read(spark, "journal").load(os.environ["JOURNAL"])
    writer = gate.write(orders, handler, on_failure="isolate")
    writer.option("checkpointLocation", os.environ["CHECKPOINT"]).start().awaitTermination()


if __name__ == "__main__":
    main()
