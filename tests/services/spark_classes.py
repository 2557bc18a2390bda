"""Spark's classes as Java maps them into memory: each Spark of the tests starts sooner with them.

``python -m tests.services.spark_classes`` makes the archive, once for a virtual environment.
A Java that cannot have one makes an empty file, and a Java it does not suit does without it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from tests.services.spark_home import surroundings

from headrace.operate.local import ensure_java

_ARCHIVE: Final = Path(sys.prefix, "spark.jsa")
_USE: Final = "use"

# Every Spark of the tests lives for a short time: its Java compiles soon rather than well.
_SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_QUIET: Final = ("-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr")


def submit_options() -> str:
    """Return the value of ``SPARK_SUBMIT_OPTS`` with which the tests' Sparks are started.

    Their streams write checkpoints through Spark's other manager of files. The default one has Java
    run a ``readlink`` for each file that it renames, which was half of what a small batch costs. A
    file of Spark's settings would not do: Java shares no classes where ``conf`` is not empty.
    """
    return f"{java_options()} -Dspark.sql.streaming.checkpointFileManagerClass={_file_manager()}"


def _file_manager() -> str:
    before_4_1 = tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 1)
    package = "org.apache.spark.sql.execution.streaming"
    module = "" if before_4_1 else ".checkpointing"
    return f"{package}{module}.FileSystemBasedCheckpointFileManager"


def java_options() -> str:
    """Return the options for the Java of executors and of a cluster, which may have no settings."""
    has_one = _ARCHIVE.exists() and _ARCHIVE.stat().st_size > 0
    shared = (f"-XX:SharedArchiveFile={_ARCHIVE}",) if has_one else ()
    return " ".join((*_SHORT_LIVED, *_QUIET, *shared))


def make() -> None:
    """Have a Spark do what the tests' Sparks do, and keep the classes that it loaded."""
    ensure_java()
    new = _ARCHIVE.with_suffix(".new")  # Whatever interrupts this leaves no half of an archive.
    new.unlink(missing_ok=True)
    options = (*_SHORT_LIVED, *_QUIET, f"-XX:ArchiveClassesAtExit={new}")
    subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), __file__, _USE],
        env={**os.environ, **surroundings(), "SPARK_SUBMIT_OPTS": " ".join(options)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    new.touch()
    new.replace(_ARCHIVE)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _use() -> None:
    """A stream with a handler in Python, and a table."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()

    def write(batch: DataFrame, _batch_id: int) -> None:
        batch.groupBy("value").count().write.mode("append").parquet(f"{folder}/table")

    with tempfile.TemporaryDirectory() as folder:
        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        writer = stream.writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
        while (progress := query.lastProgress) is None or progress["batchId"] < 2:
            query.awaitTermination(1)
        query.stop()
        spark.read.parquet(f"{folder}/table").mapInArrow(_same, "value long, count long").toArrow()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:] == [_USE]:
        _use()
    else:
        make()
