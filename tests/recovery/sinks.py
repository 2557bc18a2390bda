"""Sinks that remember which batches they have, and readers of them that are the tests' own.

A reader uses nothing of what wrote: the log of a Delta table is read as the JSON that it is, its
files with pyarrow, and PostgreSQL with psycopg.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import psycopg
import pyarrow.parquet as pq
import sqlalchemy
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from sqlalchemy import Engine
from tests.recovery.job import Job
from tests.services.lakes import delta_settings, older_spark

import headrace
from headrace.ledger import normalize_url
from headrace.local import ensure_java

Arrived = Mapping[str, tuple[str, ...]]
"""The values that a sink has, by the key of the batch that they came with."""

DELTA: Final = "delta"
DELTA_BY_NUMBER: Final = "delta by number"
POSTGRESQL: Final = "postgresql"


def jars(sink: str) -> dict[str, str]:
    """What a session needs for a sink."""
    return delta_settings(ensure_java()) if sink.startswith(DELTA) else {}


def surroundings_of(sink: str) -> dict[str, str]:
    """Variables of a process with a sink."""
    return older_spark() if sink.startswith(DELTA) else {}


def write_delta(df: DataFrame, batch: headrace.Batch, job: Job) -> None:
    _append(df, batch, job, batch.delta_options())


def write_delta_by_number(df: DataFrame, batch: headrace.Batch, job: Job) -> None:
    """The usual recipe, with which a sink forgets: a number that rises from batch to batch."""
    number = batch.ranges[0].until
    _append(df, batch, job, {"txnAppId": "orders", "txnVersion": str(number)})


def _append(df: DataFrame, batch: headrace.Batch, job: Job, options: Mapping[str, str]) -> None:
    rows = df.select(df.value.cast("string"), F.lit(batch.key).alias("batch"))
    rows.write.format("delta").mode("append").options(**options).save(str(job.path / "table"))


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


def make_postgresql(url: str) -> None:
    """Make the table of a sink in PostgreSQL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"CREATE TABLE arrived (value TEXT, batch TEXT)")


def read_delta(job: Job) -> Arrived:
    """What a Delta table has, by its log."""
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
    """What the table in PostgreSQL has."""
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
    POSTGRESQL: write_postgresql,
}
READERS: Final[Mapping[str, Callable[[Job], Arrived]]] = {
    DELTA: read_delta,
    DELTA_BY_NUMBER: read_delta,
    POSTGRESQL: read_postgresql,
}
