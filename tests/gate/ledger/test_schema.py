from typing import Any

import pytest
import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text
from sqlalchemy.engine.interfaces import ReflectedIndex
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.samples import a_batch
from tests.services.ledgers import make_tables
from tests.services.postgresql import NewUrl, url_as_new_role

from headrace.errors import LedgerError, LedgerSchemaError
from headrace.gate.ledger.connection import normalize_url
from headrace.gate.ledger.ledger import MIGRATIONS, Ledger
from headrace.gate.ledger.tables import SCHEMA_VERSION, VERSION_TABLE, metadata

REVISIONS = sorted(script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions())


def engine_of(url: str) -> Engine:
    return sqlalchemy.create_engine(normalize_url(url))


def upgrade(url: str, revision: str) -> None:
    """Bring a database to an older schema, as the Headrace of that time did."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = engine_of(url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


def tables_in(url: str) -> dict[str, Any]:
    """All that the database knows of the ledger's tables."""
    engine = engine_of(url)
    found = inspect(engine)
    described = {
        name: {
            "columns": [
                {**column, "type": repr(column["type"])} for column in found.get_columns(name)
            ],
            "primary key": found.get_pk_constraint(name),
            "foreign keys": sorted(found.get_foreign_keys(name), key=str),
            "unique": sorted(found.get_unique_constraints(name), key=str),
            "indices": sorted(map(index_as_text, found.get_indexes(name))),
        }
        for name in found.get_table_names()
        if name != VERSION_TABLE
    }
    engine.dispose()
    return described


def index_as_text(index: ReflectedIndex) -> str:
    """Also of which rows it is, which is otherwise an object equal to no other."""
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return str({**index, "dialect_options": options})


def test_versions_are_numbered_one_after_the_other() -> None:
    assert [f"{number:04}" for number in range(2, len(REVISIONS) + 2)] == REVISIONS
    assert REVISIONS[-1] == SCHEMA_VERSION


@pytest.mark.parametrize("revision", ["base", *REVISIONS])
def test_a_ledger_of_any_age_gets_the_tables_that_the_code_names(
    new_url: NewUrl, revision: str
) -> None:
    url, as_named = new_url(), new_url()
    upgrade(url, revision)
    Ledger.open(url).close()
    Ledger.open(url, create=False).close()
    engine = engine_of(as_named)
    metadata.create_all(engine)
    engine.dispose()
    assert tables_in(url) == tables_in(as_named)
    assert set(tables_in(url)) == set(metadata.tables)


def test_the_tables_that_the_tests_make_are_those_of_the_migrations(new_url: NewUrl) -> None:
    first, second, migrated = new_url(), new_url(), new_url()
    make_tables(first)
    make_tables(second)
    Ledger.open(migrated).close()
    assert tables_in(first) == tables_in(second) == tables_in(migrated)
    Ledger.open(second, create=False).close()


def test_a_ledger_that_is_opened_again_keeps_what_is_in_it(ledger: Ledger, url: str) -> None:
    batch = ledger.batches.begin(a_batch())
    for create in (True, False):
        with Ledger.open(url, create=create) as again:
            assert again.batches.newest("orders") == (batch,)


@pytest.mark.parametrize("create", [True, False])
def test_the_ledger_of_a_newer_headrace_is_refused(
    ledger: Ledger, url: str, execute: Execute, create: bool
) -> None:
    execute(text("UPDATE headrace_version SET version_num = '9999'"))
    with pytest.raises(LedgerSchemaError, match="has schema 9999 of a newer Headrace"):
        Ledger.open(url, create=create)


def test_the_ledger_of_an_older_headrace_is_not_changed_by_a_reader(
    ledger: Ledger, url: str, execute: Execute
) -> None:
    execute(text("UPDATE headrace_version SET version_num = '0000'"))
    for _ in range(2):
        with pytest.raises(LedgerSchemaError, match="has schema 0000, but this version"):
            Ledger.open(url, create=False)


def test_somebody_elses_table_is_refused_and_left_alone(url: str, execute: Execute) -> None:
    execute(text("CREATE TABLE rate (currency TEXT)"))
    before = tables_in(url)
    with pytest.raises(LedgerSchemaError, match="has a table 'rate' that Headrace did not create"):
        Ledger.open(url)
    assert tables_in(url) == before


def test_a_ledger_can_share_a_database_with_other_tables(url: str, execute: Execute) -> None:
    execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
    execute(text("INSERT INTO alembic_version VALUES ('theirs')"))
    with Ledger.open(url) as ledger:
        assert ledger.gates.all() == ()
    assert set(tables_in(url)) == {*metadata.tables, "alembic_version"}


def test_a_reader_makes_no_ledger_where_there_is_none(url: str, execute: Execute) -> None:
    execute(text("CREATE TABLE currency (name TEXT)"))
    with pytest.raises(LedgerError, match=r"There is no ledger .*; a gated query creates it"):
        Ledger.open(url, create=False)
    assert set(tables_in(url)) == {"currency"}


def test_a_ledger_opened_to_read_is_never_written(ledger: Ledger, url: str) -> None:
    batch = ledger.batches.begin(a_batch())
    with Ledger.open(url, create=False) as reader:
        for write in (
            lambda: reader.gates.declare("a", interval_ms=1, source="s", estimator="e"),
            lambda: reader.batches.begin(a_batch()),
            lambda: reader.batches.succeed(batch.batch_key),
        ):
            with pytest.raises(LedgerError, match="was opened for reading only"):
                write()
        assert reader.batches.newest("orders") == (batch,)


def test_the_right_to_make_tables_is_not_needed_once_they_are_there(
    new_postgresql_url: NewUrl, postgresql: str
) -> None:
    url = new_postgresql_url()
    Ledger.open(url).close()
    with Ledger.open(
        url_as_new_role(url, postgresql, "SELECT", "INSERT", "UPDATE", "DELETE")
    ) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        ledger.batches.succeed(ledger.batches.begin(a_batch()).batch_key)
        assert ledger.history.prune(0)[0] == 0
