from typing import Any

import pytest
import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, delete, inspect, select, text
from sqlalchemy.engine.interfaces import ReflectedIndex
from tests.ledger.conftest import Execute, NewUrl
from tests.ledger.samples import a_batch
from tests.ledger.servers import url_as_new_role
from tests.services.ledgers import make_tables

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError, SchemaError
from headrace.ledger import (
    ErrorReport,
    Ledger,
    Loss,
    PlannedRange,
    Status,
    Verdict,
    normalize_url,
    schedule_id,
    verify,
)
from headrace.ledger.schema import MIGRATIONS
from headrace.ledger.tables import SCHEMA_VERSION, VERSION_TABLE, control, failure, metadata

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
    assert [f"{number:04}" for number in range(1, len(REVISIONS) + 1)] == REVISIONS
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


OLD_ROWS = """
    INSERT INTO gate VALUES ('orders', 1000, 'kafka', 'pid', 1, 50.5, 2);
    INSERT INTO control VALUES
        ('d1', 'orders', 'run', 'live', 'success', 1, 0, 10, 11, 12, 'rate', 5, 9, 50.5, 5,
         NULL, NULL, NULL),
        ('e1', 'orders', 'run', 'live', 'failed', 1, 1, 20, 21, 22, 'rate', 5, 9, 50.5, NULL,
         'ValueError', 'no', 'trace');
    INSERT INTO lost VALUES ('orders', 'orders', 0, 10, 20, 30);
    INSERT INTO failure (schedule_id, topic, partition, start_offset, until_offset,
                         bootstrap_servers, latest_offset, reason) VALUES
        ('d1', 'orders', 0, 0, 5, 'localhost:9092', 14, 'share'),
        ('e1', 'orders', 0, 5, 10, 'localhost:9092', 14, 'share')
"""


def test_a_ledger_of_schema_0001_is_used_on_once_it_is_brought_up_to_date(
    url: str, execute: Execute
) -> None:
    upgrade(url, "0001")
    for statement in OLD_ROWS.split(";"):
        execute(text(statement))
    with pytest.raises(SchemaError, match="has schema 0001, and this Headrace reads schema 0004"):
        Ledger.open(url, create=False)
    with Ledger.open(url) as ledger:
        assert ledger.rate("orders") == 50.5
        failed, succeeded = ledger.batches("orders")
        assert (failed.status, succeeded.status) == (Status.FAILED, Status.SUCCESS)
        assert failed.error == ErrorReport("ValueError", "no", "trace")
        assert (failed.owner, failed.lease_until_ms, failed.parent) == (None, None, None)
        # What had become of its runs nobody wrote down.
        assert (failed.cut_short, succeeded.cut_short) == (True, False)
        lost = OffsetRange("orders", 0, 10, 20)
        assert ledger.losses("orders") == (Loss("orders", 30, lost),)
        ledger.record_losses("orders", [lost], {"orders": "of another topic"})
        assert len(ledger.losses("orders")) == 2
        offsets = OffsetRange("orders", 0, 5, 10)
        assert ledger.ranges("e1") == (PlannedRange(offsets, latest=14, reason="share"),)
        assert ledger.begin(a_batch()).created_time_ms > failed.created_time_ms


def test_the_tables_that_the_tests_make_are_those_of_the_migrations(new_url: NewUrl) -> None:
    first, second, migrated = new_url(), new_url(), new_url()
    make_tables(first)
    make_tables(second)
    Ledger.open(migrated).close()
    assert tables_in(first) == tables_in(second) == tables_in(migrated)
    Ledger.open(second, create=False).close()


def test_a_ledger_that_is_opened_again_keeps_what_is_in_it(ledger: Ledger, url: str) -> None:
    batch = ledger.begin(a_batch())
    for create in (True, False):
        with Ledger.open(url, create=create) as again:
            assert again.batches("orders") == (batch,)


@pytest.mark.parametrize("create", [True, False])
def test_the_ledger_of_a_newer_headrace_is_refused(
    ledger: Ledger, url: str, execute: Execute, create: bool
) -> None:
    execute(text("UPDATE headrace_version SET version_num = '9999'"))
    with pytest.raises(SchemaError, match="has schema 9999 of a newer Headrace"):
        Ledger.open(url, create=create)


def test_the_ledger_of_an_older_headrace_is_not_changed_by_a_reader(
    ledger: Ledger, url: str, execute: Execute
) -> None:
    execute(text("UPDATE headrace_version SET version_num = '0000'"))
    for _ in range(2):
        with pytest.raises(SchemaError, match="has schema 0000, and this Headrace reads"):
            Ledger.open(url, create=False)


def test_somebody_elses_table_is_refused_and_left_alone(url: str, execute: Execute) -> None:
    execute(text("CREATE TABLE rate (currency TEXT)"))
    before = tables_in(url)
    with pytest.raises(SchemaError, match="has a table 'rate' that is not a ledger's"):
        Ledger.open(url)
    assert tables_in(url) == before


def test_a_ledger_can_share_a_database_with_other_tables(url: str, execute: Execute) -> None:
    execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
    execute(text("INSERT INTO alembic_version VALUES ('theirs')"))
    with Ledger.open(url) as ledger:
        assert ledger.gates() == ()
    assert set(tables_in(url)) == {*metadata.tables, "alembic_version"}


def test_a_reader_makes_no_ledger_where_there_is_none(url: str, execute: Execute) -> None:
    execute(text("CREATE TABLE currency (name TEXT)"))
    with pytest.raises(LedgerError, match=r"There is no ledger .*; a gated query makes it"):
        Ledger.open(url, create=False)
    assert set(tables_in(url)) == {"currency"}


def test_a_ledger_opened_to_read_is_never_written(ledger: Ledger, url: str) -> None:
    batch = ledger.begin(a_batch())
    with Ledger.open(url, create=False) as reader:
        for write in (
            lambda: reader.declare_gate("a", interval_ms=1, source="s", estimator="e"),
            lambda: reader.begin(a_batch()),
            lambda: reader.succeed(batch.schedule_id),
        ):
            with pytest.raises(LedgerError, match="was opened for reading only"):
                write()
        assert reader.batches("orders") == (batch,)


def test_the_right_to_make_tables_is_not_needed_once_they_are_there(
    new_postgresql_url: NewUrl, postgresql: str
) -> None:
    url = new_postgresql_url()
    Ledger.open(url).close()
    with Ledger.open(
        url_as_new_role(url, postgresql, "SELECT", "INSERT", "UPDATE", "DELETE")
    ) as ledger:
        ledger.declare_gate("orders", interval_ms=1_000, source="kafka", estimator="pid")
        ledger.succeed(ledger.begin(a_batch()).schedule_id)
        assert ledger.prune(0).batches == 0


@pytest.mark.parametrize("gone", [None, "status = 'failed'", "status = 'success'"])
def test_from_when_an_older_ledger_is_brought_up_to_date_none_of_its_batches_can_disappear(
    url: str, execute: Execute, gone: str | None
) -> None:
    upgrade(url, "0001")
    keys = [schedule_id("orders", "run", [OffsetRange("orders", 0, at, at + 5)]) for at in (0, 5)]
    for statement in (
        OLD_ROWS.replace("'d1'", f"'{keys[0]}'").replace("'e1'", f"'{keys[1]}'").split(";")
    ):
        execute(text(statement))
    with Ledger.open(url) as ledger:
        ledger.begin(a_batch(OffsetRange("orders", 0, 20, 30)))
        assert verify(ledger, "orders").verdict is Verdict.OPEN
        if gone is not None:
            of_these = select(control.c.schedule_id).where(text(gone))
            execute(delete(failure).where(failure.c.schedule_id.in_(of_these)))
            execute(delete(control).where(text(gone)))
            assert verify(ledger, "orders").verdict is Verdict.BROKEN
