"""The version of a ledger's schema: brought up to date, or refused."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, MetaData, Table, Text, inspect, select, text

from headrace.errors import LedgerError, SchemaError
from headrace.ledger.database import Database
from headrace.ledger.engines import LIMIT_NO_LOCKS
from headrace.ledger.tables import SCHEMA_VERSION, VERSION_TABLE, metadata

MIGRATIONS: Final = Path(__file__).parent / "migrations"

# Any number that is nobody else's: it names the lock under which PostgreSQL's schema changes.
_MIGRATION_LOCK: Final = 0x48_45_41_44_47_41_54_45

# Alembic keeps what it is doing in globals.
_one_upgrade_at_a_time = threading.Lock()
_version = Table(VERSION_TABLE, MetaData(), Column("version_num", Text))


def prepare(database: Database) -> None:
    """Make the tables, or bring them up to date; one process at a time, the others wait.

    Raises:
        LedgerError: The database cannot be read or written.
        SchemaError: A newer Headrace made the tables, or something else did.
    """
    found = _found_version(database)
    if database.is_sqlite:
        database.use_write_ahead_log()
    if found == SCHEMA_VERSION:
        return
    with database.writing() as connection:
        if not database.is_sqlite:
            connection.exec_driver_sql(LIMIT_NO_LOCKS)
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK}
            )
        _upgrade(connection)  # which does nothing where another process has just done it


def check(database: Database) -> None:
    """See that the tables can be read as they are; nothing is changed.

    Raises:
        LedgerError: The database cannot be read, or holds no ledger.
        SchemaError: The ledger's version is not this one, or something else made the tables.
    """
    found = _found_version(database)
    if found is None:
        raise LedgerError(f"There is no ledger in {database.name}; a gated query makes it.")
    if found != SCHEMA_VERSION:
        raise SchemaError(
            f"The ledger {database.name} has schema {found}, and this Headrace reads schema "
            f"{SCHEMA_VERSION}; start a gated query with it, which brings the ledger up to date."
        )


def _found_version(database: Database) -> str | None:
    with database.reading() as connection:
        # One look at all tables: between two, another process could make a ledger.
        tables = inspect(connection).get_table_names()
        if VERSION_TABLE not in tables:
            _refuse_strangers(database, tables)
            return None
        found = connection.scalar(select(_version.c.version_num))
    _refuse_newer(database, found)
    return found


def _refuse_strangers(database: Database, tables: Iterable[str]) -> None:
    taken = sorted(metadata.tables.keys() & tables)
    if taken:
        raise SchemaError(
            f"The database {database.name} has a table {taken[0]!r} that is not a ledger's; use "
            "another database, or with PostgreSQL a schema of its own: "
            "?options=-csearch_path%3Dheadrace."
        )


def _refuse_newer(database: Database, found: str | None) -> None:
    if found is not None and found > SCHEMA_VERSION:
        raise SchemaError(
            f"The ledger {database.name} has schema {found} of a newer Headrace, and this one "
            f"knows schemas up to {SCHEMA_VERSION}; install that newer Headrace here too, or use "
            "another ledger."
        )


def _upgrade(connection: Connection) -> None:
    # Alembic is slow to import, and a ledger that is up to date does without.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _one_upgrade_at_a_time:
        command.upgrade(config, "head")
