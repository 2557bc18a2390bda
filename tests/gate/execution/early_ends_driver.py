"""A program whose handlers do not read all of a batch; what it logs is what its caller looks at."""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace import Batch, Gate


def early(df: DataFrame, _batch: Batch) -> None:
    """Each action reads after one that did not read to the end."""
    assert df.first() is not None
    assert len(df.take(5)) == 5
    assert not df.isEmpty()
    df.show(3)
    assert df.limit(5).count() == 5
    kept = df.persist()
    assert not kept.isEmpty()
    assert kept.count()
    kept.unpersist()


def main(folder: Path, servers: str, topic: str, journal: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    spark = headrace.configure(builder).getOrCreate()
    kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    for source, options in (("kafka", kafka), ("journal", {"path": journal})):
        gate = Gate(source, interval="1 second", ledger=f"sqlite:///{folder}/headrace.db")
        whole = {"backpressure.initialRate": "1000000", "startingOffsets": "earliest"}
        df = gate.read(spark, source).options(**options, **whole).load()
        writer = gate.write(df, early).option("checkpointLocation", str(folder / source))
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
