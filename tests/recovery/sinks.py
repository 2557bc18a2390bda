"""Sinks that remember which batches they have, and readers of them that are the tests' own.

A reader uses nothing of Headrace: the log of a Delta table is read as the JSON that it is, its
files with pyarrow, PostgreSQL with psycopg, and Iceberg with a catalog opened anew.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import (
    DataFrame,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from sqlalchemy import Engine
from tests.docs.pages import ROOT, blocks
from tests.recovery.job import Job
from tests.services.lakes import delta_settings, older_spark

import headrace
from headrace.gate.ledger.connection import normalize_url
from headrace.operate.local import ensure_java

Arrived = Mapping[str, tuple[str, ...]]
"""The values that a sink has, by the key of the batch that they came with."""

DELTA: Final = "delta"
DELTA_BY_NUMBER: Final = "delta by number"
ICEBERG: Final = "iceberg"
POSTGRESQL: Final = "postgresql"


def jars(sink: str) -> dict[str, str]:
    """Return the settings that a session needs for a sink."""
    return delta_settings(ensure_java()) if sink.startswith(DELTA) else {}


def surroundings_of(sink: str) -> dict[str, str]:
    """Variables of a process with a sink."""
    return older_spark() if sink.startswith(DELTA) else {}


@cache
def _handler_of_the_page(path: str) -> Callable[[DataFrame, headrace.Batch], None]:
    """The handler for Delta that stands in the documentation."""
    (block,) = (b for b in blocks(ROOT / "docs/sinks.md", "python") if "write_delta" in b.text)
    names: dict[str, Any] = {}
    exec(block.text.replace("lake/orders", path), names)  # noqa: S102
    handler: Callable[[DataFrame, headrace.Batch], None] = names["write_delta"]
    return handler


def write_delta(df: DataFrame, batch: headrace.Batch, job: Job) -> None:
    _handler_of_the_page(str(job.path / "table"))(_rows_of(df, batch), batch)


def write_delta_by_number(df: DataFrame, batch: headrace.Batch, job: Job) -> None:
    """The usual recipe, with which a sink forgets: a number that rises from batch to batch."""
    options = {"txnAppId": "orders", "txnVersion": str(batch.ranges[0].until)}
    writer = _rows_of(df, batch).write.format("delta").mode("append").options(**options)
    writer.save(str(job.path / "table"))


def _rows_of(df: DataFrame, batch: headrace.Batch) -> DataFrame:
    return df.select(df.value.cast("string"), F.lit(batch.key).alias("batch"))


@cache
def _engine(url: str) -> Engine:
    return sqlalchemy.create_engine(normalize_url(url))


def write_postgresql(df: DataFrame, batch: headrace.Batch, job: Job) -> None:
    with _engine(job.sink_url).begin() as connection:
        if not batch.once(connection):
            return
        rows = [{"value": bytes(row.value).decode(), "batch": batch.key} for row in df.collect()]
        # One by one, so that a kill finds some of them written.
        insert = sqlalchemy.text("INSERT INTO arrived (value, batch) VALUES (:value, :batch)")
        for row in rows:
            connection.execute(insert, row)


def write_iceberg(df: DataFrame, batch: headrace.Batch, job: Job) -> None:
    batch.append_iceberg(_rows_of(df, batch), _lake(job).load_table("shop.arrived"))


def _lake(job: Job) -> SqlCatalog:
    uri = f"sqlite:///{job.path}/catalog.db"
    return SqlCatalog("lake", uri=uri, warehouse=f"file://{job.path}/lake")


def make_iceberg(job: Job) -> None:
    """Make the catalog and the table of a sink in Iceberg."""
    (job.path / "lake").mkdir(parents=True)
    lake = _lake(job)
    lake.create_namespace("shop")
    lake.create_table("shop.arrived", pa.schema([("value", pa.string()), ("batch", pa.string())]))


def read_iceberg(job: Job) -> Arrived:
    """Return the values of the table in Iceberg."""
    rows = _lake(job).load_table("shop.arrived").scan().to_arrow().to_pylist()
    return _by_batch((row["batch"], row["value"]) for row in rows)


def make_postgresql(url: str) -> None:
    """Make the table of a sink in PostgreSQL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"CREATE TABLE arrived (value TEXT, batch TEXT)")


def read_delta(job: Job) -> Arrived:
    """Return the values of a Delta table, by its log."""
    log = job.path / "table" / "_delta_log"
    files: set[str] = set()
    for commit in sorted(log.glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                files.add(unquote(action["add"]["path"]))
            if "remove" in action:
                files.discard(unquote(action["remove"]["path"]))
    return _by_batch(row for file in sorted(files) for row in _rows(job.path / "table" / file))


def _rows(file: Path) -> list[tuple[str, str]]:
    table = pq.ParquetFile(file).read(columns=["batch", "value"])
    return [(row["batch"], row["value"]) for row in table.to_pylist()]


def read_postgresql(job: Job) -> Arrived:
    """Return the values of the table in PostgreSQL."""
    with psycopg.connect(job.sink_url) as connection:
        return _by_batch(connection.execute(b"SELECT batch, value FROM arrived").fetchall())


def _by_batch(rows: Iterable[tuple[str, str]]) -> Arrived:
    found: dict[str, list[str]] = defaultdict(list)
    for key, value in rows:
        found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}


SINKS: Final[Mapping[str, Callable[[DataFrame, headrace.Batch, Job], None]]] = {
    DELTA: write_delta,
    DELTA_BY_NUMBER: write_delta_by_number,
    ICEBERG: write_iceberg,
    POSTGRESQL: write_postgresql,
}
READERS: Final[Mapping[str, Callable[[Job], Arrived]]] = {
    DELTA: read_delta,
    DELTA_BY_NUMBER: read_delta,
    ICEBERG: read_iceberg,
    POSTGRESQL: read_postgresql,
}
