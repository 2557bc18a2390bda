"""Writes that store each batch once in a sink outside of the ledger's database, by batch key.

A backfill runs batches out of order, so a sink cannot tell by a batch's number whether it has the
batch. Instead, each function here stores the batch's key in the same transaction or commit as the
rows. A batch whose key is stored is skipped, and any other batch is written.

A batch and its parts have the same records, but different keys. So the write of a part also marks
the keys of the enclosing parts and of the batch as split. Then the whole batch can no longer be
written after a part of it, and no part after the whole batch. This matters if two processes run a
batch, because one was frozen for longer than its lease.
"""

import copy
import json
import sqlite3
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy
from pyspark.sql import (
    Column,
    DataFrame,
    functions as F,  # noqa: N812
)
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from headrace.errors import BatchSplitError, OptionError

if TYPE_CHECKING:
    from pyiceberg.table import Table

DELTA_VERSION: Final = 1
"""Value of ``txnVersion`` for all batches. Delta skips a write whose version is not above the last
version of the same ``txnAppId``. Each batch has its own ``txnAppId``, so its first write is stored
and later writes are skipped."""

ICEBERG_PROPERTY: Final = "headrace.batch-key"
"""Property of an Iceberg snapshot: key of the batch whose rows the snapshot adds."""

ICEBERG_SPLIT_PROPERTY: Final = "headrace.split-batch-keys"
"""Property of an Iceberg snapshot with the rows of a part: keys of the enclosing parts and of the
batch, as JSON."""

RECORD_HEADER: Final = "headrace-record"
"""Name of the Kafka header that identifies a row: all copies of a row have the same value."""

BATCH_KEY_HEADER: Final = "headrace-batch-key"
"""Name of the Kafka header with the key of the batch that wrote this copy of the row."""

BATCHES: Final = sqlalchemy.Table(
    "headrace_batches",
    sqlalchemy.MetaData(),
    sqlalchemy.Column("batch_key", sqlalchemy.String(128), primary_key=True),
    sqlalchemy.Column("name", sqlalchemy.String(128), primary_key=True),
    # Whether parts of the batch were written, and the whole was not.
    sqlalchemy.Column("is_split", sqlalchemy.Boolean, nullable=False),
    sqlalchemy.Column(
        "written_at",
        sqlalchemy.DateTime(timezone=True),
        nullable=False,
        server_default=sqlalchemy.func.now(),
    ),
)
"""Table of the batch keys stored in a database, in its default schema."""


def delta_options(key: str, name: str) -> dict[str, str]:
    """Return the result of `Batch.delta_options`, for the batch with this key."""
    suffix = f"-{name}" if name else ""
    return {"txnAppId": f"headrace-{key}{suffix}", "txnVersion": str(DELTA_VERSION)}


class _Presence(Enum):
    NOTHING = "nothing"
    ALL = "all"
    PARTS = "parts"


def append_iceberg(
    df: DataFrame, table: "Table", keys: Sequence[str], name: str, *, asked: Callable[[], None]
) -> bool:
    """Do the work of `Batch.append_iceberg`.

    ``keys`` are the key of the batch or part, and then the keys of the enclosing parts and the
    batch. ``asked`` is called after the table was searched for these keys.
    """
    mark, *above = marks = [f"{key}/{name}" if name else key for key in keys]
    properties = {ICEBERG_PROPERTY: mark}
    if above:
        properties[ICEBERG_SPLIT_PROPERTY] = json.dumps(above)
    table.refresh()
    watched = copy.copy(table)
    watched.catalog = watcher = _Watcher(table.catalog, marks)  # type: ignore[assignment]
    watcher.look(table)
    asked()
    try:
        if watcher.found is _Presence.NOTHING:
            watched.append(df.toArrow(), snapshot_properties=properties)
    except Exception:
        if watcher.found is _Presence.NOTHING:
            raise
    finally:
        # Copy the known state of the table, without asking a catalog that may be unreachable.
        table.metadata, table.metadata_location = watched.metadata, watched.metadata_location
    if watcher.found is _Presence.PARTS:
        raise _split_error(keys[0])
    return watcher.found is _Presence.NOTHING


class _Watcher:
    """Catalog that refuses a commit to a table if the table has the batch already.

    A commit names the snapshot that it follows, and fails if the table has a newer snapshot.
    PyIceberg then reads the table again and retries. Another process may have written the batch
    meanwhile, so this class checks the table before each attempt.
    """

    def __init__(self, catalog: Any, marks: Sequence[str]) -> None:
        self._catalog = catalog
        self._marks = marks
        self.found = _Presence.NOTHING

    def look(self, table: "Table") -> None:
        self.found = _presence(table, self._marks)

    def commit_table(self, table: "Table", requirements: Any, updates: Any) -> Any:
        """Commit through the catalog, unless the table has the batch already.

        Raises `ValidationException` if the batch is there already. PyIceberg then stops, and
        removes its manifests.
        """
        from pyiceberg.exceptions import ValidationException  # noqa: PLC0415  (an extra)

        self.look(table)
        if self.found is not _Presence.NOTHING:
            raise ValidationException(f"Another run has written the batch {self._marks[0]}.")
        return self._catalog.commit_table(table, requirements, updates)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


def _presence(table: "Table", marks: Sequence[str]) -> _Presence:
    """Return how much of a batch or part is in the table's current snapshot and its ancestors.

    The first of ``marks`` belongs to the batch or part; the other marks belong to the enclosing
    parts and the batch.
    """
    by_id = {entry.snapshot_id: entry for entry in table.metadata.snapshots}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        properties = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if properties.get(ICEBERG_PROPERTY) in marks:
            return _Presence.ALL
        if marks[0] in json.loads(properties.get(ICEBERG_SPLIT_PROPERTY, "[]")):
            return _Presence.PARTS
        # None if the parent was expired, or if this snapshot is the first.
        snapshot = by_id.get(snapshot.parent_snapshot_id or -1)
    return _Presence.NOTHING


_MICROSECONDS: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_EXACT: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": f"{_MICROSECONDS}XXX",
    "timestampNTZFormat": _MICROSECONDS,
    "timeZone": "UTC",
}


def kafka_headers(key: str, columns: tuple[str, ...]) -> Column:
    """Return the result of `Batch.kafka_headers`, for the batch with this key."""
    if not columns:
        raise OptionError(
            "batch.kafka_headers() is called without columns; name the columns that identify a"
            " row, such as 'topic', 'partition', 'offset'."
        )
    # Typed JSON keeps different values distinct; binary values cast to text could look alike.
    record = F.to_json(F.struct(*(F.col(name) for name in columns)), _EXACT)
    return F.array(
        _header(RECORD_HEADER, record.cast("binary")),
        _header(BATCH_KEY_HEADER, F.lit(key).cast("binary")),
    )


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.alias("value"))


def once(connection: Connection, keys: Sequence[str], name: str) -> bool:
    """Do the work of `Batch.once`; ``keys`` are as for `append_iceberg`."""
    key, *above = keys
    _require_transaction(connection, key)
    _make_table(connection)
    # Lock the largest part first: its owner blocks all inner parts, so no deadlock can form.
    for batch in reversed(above):
        is_marked = _insert(connection, batch, name, is_split=True)
        if not is_marked and not _is_split(connection, batch, name):
            return False
    if _insert(connection, key, name, is_split=False):
        return True
    if _is_split(connection, key, name):
        raise _split_error(key)
    return False


def _insert(connection: Connection, key: str, name: str, *, is_split: bool) -> bool:
    """Insert a key into `BATCHES` if it is missing. Return whether it was inserted."""
    row = {"batch_key": key, "name": name, "is_split": is_split}
    if connection.dialect.name == "postgresql":
        # Waits for another open transaction that has inserted the key.
        on_server = postgresql.insert(BATCHES).values(row).on_conflict_do_nothing()
        written = connection.execute(on_server.returning(BATCHES.c.batch_key))
        return written.first() is not None
    if connection.dialect.name == "sqlite":
        # No savepoint: releasing the savepoint that began the transaction would commit it.
        in_file = sqlite.insert(BATCHES).values(row).on_conflict_do_nothing()
        return connection.execute(in_file).rowcount == 1
    try:
        with connection.begin_nested():
            connection.execute(sqlalchemy.insert(BATCHES).values(row))
    except IntegrityError:
        return False
    return True


def _is_split(connection: Connection, key: str, name: str) -> bool:
    columns = BATCHES.c
    query = sqlalchemy.select(columns.is_split).where(
        columns.batch_key == key, columns.name == name
    )
    return bool(connection.execute(query).scalar())


def _split_error(key: str) -> BatchSplitError:
    return BatchSplitError(
        f"The sink has parts of batch {key!r}, so the batch is not written as a"
        " whole: another process has taken it over from this one, whose lease ran out, or the"
        " ledger was put back from an older copy; run `headrace verify` if it comes again."
    )


def _require_transaction(connection: Connection, key: str) -> None:
    if _commits_each_statement(connection.connection.dbapi_connection):
        raise OptionError(
            f"The connection given to batch.once() for batch {key!r} commits each statement by"
            " itself (AUTOCOMMIT), so the key could be stored without the rows; give a connection"
            " with a transaction: `with engine.begin() as connection:`."
        )


def _commits_each_statement(driver: Any) -> bool:
    if isinstance(driver, sqlite3.Connection):
        # An engine may have begun a transaction even if the driver begins none.
        begins_none = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
        return begins_none and not driver.in_transaction
    if callable(getter := getattr(driver, "get_autocommit", None)):  # MySQL's drivers
        return bool(getter())
    return getattr(driver, "autocommit", None) is True


def _make_table(connection: Connection) -> None:
    """Create `BATCHES` if it is missing. If it exists, the right to create tables is not needed."""
    if _is_there(connection):
        return
    make = sqlalchemy.schema.CreateTable(BATCHES, if_not_exists=True)
    if connection.dialect.name != "postgresql":
        connection.execute(make)
        return
    try:
        with connection.begin_nested():
            connection.execute(make)
    except DBAPIError:
        # PostgreSQL reports a table that was created meanwhile as a duplicate key.
        if not _is_there(connection):
            raise


def _is_there(connection: Connection) -> bool:
    return sqlalchemy.inspect(connection).has_table(BATCHES.name)
