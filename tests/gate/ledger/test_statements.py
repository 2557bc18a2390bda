"""The statements of ``sql/``: each can be prepared on both databases, and reads no history."""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, combinations
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy
from sqlalchemy import TextClause, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from tests.services.ledgers import make_tables

from headrace.gate.ledger.connection import normalize_url
from headrace.gate.ledger.moments import BUCKETS_MS
from headrace.gate.ledger.statements import FOLDER, Statement, execute, statements
from headrace.gate.ledger.transitions import TRANSITIONS

OF_FILES: Final = [statements(path.stem).values() for path in sorted(FOLDER.glob("*.sql"))]
ALL: Final = {statement.name: statement for statement in chain(*OF_FILES)} | {
    f"{each.statement.name} ({number})": each.statement for number, each in enumerate(TRANSITIONS)
}
SMALL: Final = {"gate", "receiver", "stage_state", "action", "headrace_version"}
"""Tables with a row for each gate, lane, stage or act of an operator; others have a history."""
OF_THE_STATEMENT: Final = {"CONSTANT", "bound", "below", "counted", "backlog"}
"""Rows of the statement itself, which are as many as it asks for."""


def variants(statement: Statement) -> Iterator[frozenset[str]]:
    """Yield every set of optional values with which a statement can be run."""
    names = sorted(statement.optional)
    for count in range(len(names) + 1):
        yield from map(frozenset, combinations(names, count))


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_no_macro_is_left_over(name: str, dialect: str) -> None:
    text = str(ALL[name].on(dialect, ALL[name].optional))
    assert "{" not in text
    assert "--" not in text


def test_the_statements_that_count_durations_have_the_bounds_that_metrics_show() -> None:
    for name in ("moment.counts", "moment.counts_of"):
        text = ALL[name].on("sqlite").text
        bounds = re.findall(r"took_ms <= (\d+) THEN (\d+)", text)
        assert [(int(most), int(place)) for most, place in bounds] == [
            (most, place) for place, most in enumerate(BUCKETS_MS)
        ]


READS_ALL: Final = "proof."
"""A proof is of a gate's whole history; the table of losses alone is read for all gates."""


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted(name for name in ALL if not name.startswith(READS_ALL)))
def test_no_statement_looks_through_the_history(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    make_tables(url)
    engine = sqlalchemy.create_engine(url)
    statement = ALL[name]
    with engine.connect() as connection:
        for given in variants(statement):
            text = statement.on("sqlite", given)
            explained = sqlalchemy.text(f"EXPLAIN QUERY PLAN {text.text}")
            lists = [each for each in text._bindparams.values() if each.expanding]
            rows = connection.execute(explained.bindparams(*lists), of_each(text, "1"))
            scanned = {row.detail.split()[1] for row in rows if row.detail.startswith("SCAN ")}
            scanned = {each for each in scanned if not each.startswith("(")}  # a subquery
            assert scanned <= SMALL | OF_THE_STATEMENT, given
    engine.dispose()


@pytest.mark.integration
def test_each_statement_is_understood_also_without_values(url: str) -> None:
    make_tables(url)
    engine = sqlalchemy.create_engine(normalize_url(url))
    with engine.connect() as connection:
        for statement in ALL.values():
            for given in variants(statement):
                text = statement.on(connection.dialect.name, given)
                with suppress(IntegrityError):  # a null where there must be none
                    connection.execute(text, of_each(text, None))
                connection.rollback()
    engine.dispose()


HOSTILE: Final = (
    "it's; DROP TABLE gate; --",
    "\0",
    "\N{PILE OF POO} %s %(gate)s :gate ? $1 {now} --? gate",
    "x" * 1_000_000,
)


@pytest.mark.integration
def test_a_value_is_never_part_of_a_statement(url: str) -> None:
    make_tables(url)
    engine = sqlalchemy.create_engine(normalize_url(url))
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def remember(_: object, __: object, statement: str, *___: object) -> None:
        sent.append(statement)

    with engine.connect() as connection:
        for statement in ALL.values():
            text = statement.on(connection.dialect.name, statement.optional)
            for value in ("orders", *HOSTILE):
                with suppress(DBAPIError):  # such as a text that is to be a number
                    connection.execute(text, of_each(text, value))
                connection.rollback()
            assert len(set(sent)) == 1, statement
            sent.clear()
        assert connection.scalar(sqlalchemy.text("SELECT count(*) FROM gate")) == 0
    engine.dispose()


def test_a_column_that_a_newer_schema_adds_meanwhile_moves_no_value() -> None:
    asked = [
        Statement("all", ["SELECT one.*, 9 AS last FROM one"]),
        Statement("named", ["SELECT a, 9 AS last FROM one"]),
        Statement("changed", ["UPDATE one SET b = b RETURNING *, 9 AS last"]),
    ]
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE one (a INTEGER, b INTEGER)")
        connection.exec_driver_sql("INSERT INTO one VALUES (1, 2)")
        for change in ("SELECT 1", "ALTER TABLE one ADD COLUMN c INTEGER DEFAULT 3"):
            connection.exec_driver_sql(change)
            for statement in asked * 2:  # from the second time on its columns may be known
                row = execute(connection, statement).one()
                assert (row.a, row.last) == (1, 9), statement
    engine.dispose()


def of_each(text: TextClause, value: object) -> dict[str, object]:
    return {name: [value] if bound.expanding else value for name, bound in text._bindparams.items()}
