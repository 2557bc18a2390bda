"""The version of a ledger's schema: brought up to date, or refused."""

import threading
from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, MetaData, Table, Text, inspect, select, text

from headgate.errors import LedgerError, SchemaError
from headgate.ledger.engine import Database
from headgate.ledger.tables import SCHEMA_VERSION, VERSION_TABLE, metadata

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
        SchemaError: A newer Headgate made the tables, or something else did.
    """
    with database.reading() as connection:
        current = _is_current(database, connection)
    if database.is_sqlite:
        database.use_write_ahead_log()
    if current:
        return
    with database.writing() as connection:
        if not database.is_sqlite:
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK}
            )
        if not _is_current(database, connection):  # others may have been waiting, too
            _upgrade(connection)


def check(database: Database) -> None:
    """See that the tables can be read as they are; nothing is changed.

    Raises:
        LedgerError: The database cannot be read, or holds no ledger.
        SchemaError: The ledger's version is not this one.
    """
    with database.reading() as connection:
        found = _found_version(connection)
    if found is None:
        raise LedgerError(f"There is no ledger in {database.name}; a gated query makes it.")
    _refuse_newer(database, found)
    if found != SCHEMA_VERSION:
        raise SchemaError(
            f"The ledger {database.name} has schema {found}, and this Headgate reads schema "
            f"{SCHEMA_VERSION}; start a gated query with it, which brings the ledger up to date."
        )


def _is_current(database: Database, connection: Connection) -> bool:
    found = _found_version(connection)
    _refuse_newer(database, found)
    if found is None:
        _refuse_strangers(database, connection)
    return found == SCHEMA_VERSION


def _found_version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.scalar(select(_version.c.version_num))


def _refuse_newer(database: Database, found: str | None) -> None:
    if found is not None and found > SCHEMA_VERSION:
        raise SchemaError(
            f"The ledger {database.name} has schema {found} of a newer Headgate, and this one "
            f"knows schemas up to {SCHEMA_VERSION}; install that newer Headgate here too, or use "
            "another ledger."
        )


def _refuse_strangers(database: Database, connection: Connection) -> None:
    taken = sorted(set(inspect(connection).get_table_names()) & set(metadata.tables))
    if taken:
        raise SchemaError(
            f"The database {database.name} has a table {taken[0]!r} that is not a ledger's; use "
            "another database, or with PostgreSQL a schema of its own: "
            "?options=-csearch_path%3Dheadgate."
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
