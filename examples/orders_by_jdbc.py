"""Orders from Kafka into PostgreSQL by Spark's own JDBC writer, each once; bad ones put aside.

Run it: python orders_by_jdbc.py localhost:9092 orders
"""

import os
import sys

import sqlalchemy
from pyspark.sql import DataFrame, SparkSession

import headrace

ORDER = headrace.json("id BIGINT NOT NULL, customer STRING NOT NULL, amount DOUBLE NOT NULL")
DATABASE = sqlalchemy.make_url(os.environ["HEADRACE_LEDGER"])  # of the ledger, and of the orders
JDBC_URL = f"jdbc:postgresql://{DATABASE.host}:{DATABASE.port or 5432}/{DATABASE.database}"
COLUMNS = ["id", "customer", "amount"]
LOGIN = {"driver": "org.postgresql.Driver", "user": DATABASE.username or ""} | (
    {"password": str(DATABASE.password)} if DATABASE.password else {}
)


def write(df: DataFrame, batch: headrace.Batch) -> None:
    """Write into a table of the batch's own, and move its rows: all of them once, or none."""
    staging = f"staging_{batch.key.replace('.', '_')}"
    rows = df.where("value IS NOT NULL").select("value.*")
    # Each partition commits by itself: a crash leaves some, which the next run overwrites.
    rows.write.jdbc(JDBC_URL, staging, mode="overwrite", properties=LOGIN)
    with batch.transaction() as connection:  # in which the ledger notes the batch's success too
        moved = sqlalchemy.select(table_of_orders(staging))
        connection.execute(table_of_orders("orders").insert().from_select(COLUMNS, moved))
        connection.execute(sqlalchemy.text(f"DROP TABLE {staging}"))


def table_of_orders(name: str) -> sqlalchemy.TableClause:
    """A table with the columns of an order."""
    return sqlalchemy.table(name, *map(sqlalchemy.column, COLUMNS))


def main(kafka: str, topic: str) -> None:
    """Process what is there now, in batches of about a second, and end."""
    ledger = os.environ["HEADRACE_LEDGER"]
    engine = sqlalchemy.create_engine(DATABASE.set(drivername="postgresql+psycopg"))
    columns = "id BIGINT PRIMARY KEY, customer TEXT, amount FLOAT"
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(f"CREATE TABLE IF NOT EXISTS orders ({columns})"))
    builder = SparkSession.builder.appName("orders")
    builder = builder.config("spark.jars.packages", "org.postgresql:postgresql:42.7.14")
    spark = headrace.configure(builder).getOrCreate()
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
    with engine.begin() as connection:
        print(connection.scalar(sqlalchemy.text("SELECT count(*) FROM orders")), "orders")
    engine.dispose()


if __name__ == "__main__":
    main(*sys.argv[1:])
