from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import CompoundSelect, Delete, Insert, Select, Update, event
from tests.services.ledgers import make_tables

from headrace.ledger import (
    TRANSITIONS,
    Status,
    batch_rows,
    batches,
    checkpoints,
    dead_letters,
    gates,
    history,
    outputs,
    pruning,
    rates,
    receivers,
    transitions,
)


def test_the_arrows_are_those_of_the_reference() -> None:
    moves = {arrow.letter: (arrow.before, arrow.after) for arrow in TRANSITIONS}
    assert moves == {
        "A": (None, "in_progress"),
        "B": ("in_progress", "in_progress"),
        "C": ("failed", "in_progress"),
        "D": ("in_progress", "success"),
        "E": ("in_progress", "failed"),
        "F": ("failed", "backfilling"),
        "G": ("backfilling", "success"),
        "H": ("backfilling", "failed"),
        "I": ("backfilling", "dead"),
    }


def test_an_attempt_is_counted_when_a_batch_is_begun_and_when_its_backfill_fails() -> None:
    assert {arrow.letter for arrow in TRANSITIONS if arrow.attempts} == set("ABCH")
    assert {arrow.attempts for arrow in TRANSITIONS} == {0, 1}


def test_no_arrow_leaves_success_or_dead() -> None:
    assert not [arrow for arrow in TRANSITIONS if arrow.before in {Status.SUCCESS, Status.DEAD}]


def test_every_status_can_be_reached() -> None:
    reached: set[Status | None] = {None}
    while more := {arrow.after for arrow in TRANSITIONS if arrow.before in reached} - reached:
        reached |= more
    assert reached == {None, *Status}


def test_no_two_arrows_join_the_same_two_statuses() -> None:
    assert len({(arrow.before, arrow.after) for arrow in TRANSITIONS}) == len(TRANSITIONS)


MODULES = (
    *(batch_rows, batches, checkpoints, dead_letters, gates, history),
    *(outputs, pruning, rates, receivers, transitions),
)

STATEMENTS: dict[str, Select[object] | CompoundSelect[object] | Insert | Update | Delete] = {
    f"{module.__name__.rpartition('.')[2]}.{name}": value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, Select | CompoundSelect | Insert | Update | Delete)
}

OF_A_WHOLE_LEDGER = {"checkpoints.UNDECLARED_GATES", "history.UNDECLARED_GATES"}

"""Which `verify` alone asks."""


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - OF_A_WHOLE_LEDGER))
def test_no_statement_looks_through_the_history(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    make_tables(url)
    engine = sqlalchemy.create_engine(url)
    sent: list[tuple[str, Any]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def remember(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        sent.append((statement, parameters))

    with engine.connect() as connection:
        given = STATEMENTS[name].compile(engine).params
        values = {name: 1 for name, value in given.items() if value is None}
        connection.execute(STATEMENTS[name], values)
        text, parameters = sent[0]
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", parameters)
        scanned = {row.detail.split()[1] for row in rows if row.detail.startswith("SCAN ")}
    engine.dispose()
    assert scanned <= {"CONSTANT", "gate"}
