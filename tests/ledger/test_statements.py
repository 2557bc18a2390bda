from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import CompoundSelect, Delete, Insert, Select, Update, event
from tests.services.ledgers import make_tables

from headrace.ledger import moves, pruning, retention, statements

STATEMENTS: dict[str, Select[object] | CompoundSelect[object] | Insert | Update | Delete] = {
    name: value
    for module in (statements, moves, pruning, retention)
    for name, value in vars(module).items()
    if isinstance(value, Select | CompoundSelect | Insert | Update | Delete)
}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
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
