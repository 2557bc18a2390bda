"""Orders from Kafka into PostgreSQL, each once, past those that cannot be read.

    python examples/orders_into_postgresql.py localhost:9092 orders postgresql://me@host/shop ckpt/

The ledger is in the same database as the orders. A batch's rows and the word of the ledger that the
batch is done are one transaction: after a crash at any moment either both are there or neither is.
An order that PostgreSQL refuses is found by halving its batch, and kept as a dead letter.
"""

import argparse

import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace

ORDER = "id LONG, customer STRING, amount DOUBLE"

orders = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("customer", sa.Text, nullable=False),
    sa.Column("amount", sa.Double, nullable=False),
)


def write(df: DataFrame, batch: headrace.Batch) -> None:
    """Insert a batch, whole or not at all."""
    rows = [row.asDict() for row in df.collect()]
    with batch.transaction() as connection:
        if rows:
            connection.execute(sa.insert(orders), rows)
    print(f"batch {batch.key}: {len(rows)} orders")


def main() -> None:
    """Process what is there now, in batches of about a second, and end."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("kafka", help="host:port of a broker")
    arguments.add_argument("topic")
    arguments.add_argument("database", help="postgresql://user@host/database")
    arguments.add_argument("checkpoint", help="a folder")
    options = arguments.parse_args()
    url = options.database.replace("postgresql://", "postgresql+psycopg://", 1)
    orders.metadata.create_all(sa.create_engine(url))

    spark = headrace.configure(SparkSession.builder.appName("orders")).getOrCreate()
    gate = headrace.Gate("orders", interval="1 second", ledger=options.database)
    df = (
        gate.read(spark, "kafka")
        .option("kafka.bootstrap.servers", options.kafka)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), ORDER).alias("order"))
        .select("order.*")
    )
    query = (
        gate.write(df, write, on_failure=headrace.retry(2, then="isolate"))
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)  # leave this out to go on for ever
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
