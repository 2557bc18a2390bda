"""A program whose query has a gate by options alone, and which ends as it is told to."""

import sys
from typing import NoReturn

from pyspark.sql import SparkSession
from tests.services.waiting import wait_until

import headrace
from headrace.gate.ledger.ledger import Ledger


def main(folder: str, journal: str, end: str) -> None:
    """Read the journal, and end at once: when the query has, by an exception, or without a stop."""
    url = f"sqlite:///{folder}/headrace.db"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    spark = headrace.configure(builder).getOrCreate()
    headrace.register(spark, ledger=url)
    gate = {"headrace.gate": "bare", "headrace.ledger": url, "headrace.interval": "1 second"}
    df = spark.readStream.format("headrace-journal").options(**gate).load(journal)
    writer = df.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
    if end == "finished":
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    writer.start()
    with Ledger.open(url) as ledger:
        wait_until(lambda: ledger.rates.history("bare"), 60)
    if end == "raised":
        _fail()


def _fail() -> NoReturn:
    raise ValueError("the program failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
