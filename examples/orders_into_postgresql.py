"""Orders from Kafka into PostgreSQL, each once, and a count of each minute; bad ones put aside.

Run it: python orders_into_postgresql.py localhost:9092 orders
"""

import os
import sys
from collections import Counter
from datetime import UTC

import psycopg
import sqlalchemy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace

ORDER = headrace.json("id BIGINT NOT NULL, customer STRING NOT NULL, amount DOUBLE NOT NULL")
TABLES = """
    CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, customer TEXT, amount FLOAT);
    CREATE TABLE IF NOT EXISTS per_minute (minute TIMESTAMPTZ PRIMARY KEY, orders BIGINT)"""
INSERT = sqlalchemy.text("INSERT INTO orders VALUES (:id, :customer, :amount)")
COUNT = sqlalchemy.text("""INSERT INTO per_minute VALUES (:minute, :orders)
    ON CONFLICT (minute) DO UPDATE SET orders = per_minute.orders + excluded.orders""")


def write(df: DataFrame, batch: headrace.Batch) -> None:
    """Insert a batch and add up its minutes: all of it once, or nothing."""
    orders = df.where("value IS NOT NULL")
    rows = orders.select(F.date_trunc("minute", "timestamp").alias("minute"), "value.*").collect()
    minutes = Counter(row.minute.astimezone(UTC) for row in rows)
    with batch.transaction() as connection:  # in which the ledger notes the batch's success too
        if rows:
            connection.execute(INSERT, [row.asDict() for row in rows])
            connection.execute(COUNT, [{"minute": m, "orders": n} for m, n in minutes.items()])


def main(kafka: str, topic: str, ledger: str) -> None:
    """Process what is there now, in batches of about a second, and end."""
    with psycopg.connect(ledger) as connection:
        connection.execute(TABLES)
    spark = headrace.configure(SparkSession.builder.appName("orders")).getOrCreate()
    gate = headrace.Gate("orders", interval="1 second", ledger=ledger)
    source = gate.read(spark, "kafka", decode=ORDER).option("kafka.bootstrap.servers", kafka)
    orders = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    query = (
        gate.write(orders, write, on_failure=headrace.retry(2, then="isolate"))
        .option("checkpointLocation", "checkpoints/orders")
        .trigger(availableNow=True)  # leave this out to go on for ever
        .start()
    )
    query.awaitTermination()
    with psycopg.connect(ledger) as connection:
        for minute, orders_in_it in connection.execute("SELECT * FROM per_minute ORDER BY minute"):
            print(minute, orders_in_it)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], os.environ["HEADRACE_LEDGER"])
