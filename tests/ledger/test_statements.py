from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import Delete, Select, Update
from sqlalchemy.dialects import sqlite

from headgate.ledger import Ledger, statements

STATEMENTS: dict[str, Select[object] | Update | Delete] = {
    name: value
    for name, value in vars(statements).items()
    if isinstance(value, Select | Update | Delete)
}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_statement_looks_through_the_history(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url).close()
    compiled = STATEMENTS[name].compile(dialect=sqlite.dialect())
    engine = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        nothing = tuple(None for _ in compiled.positiontup or ())
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", nothing)
        scanned = {row.detail.split()[1] for row in rows if row.detail.startswith("SCAN ")}
    engine.dispose()
    assert scanned <= {"gate"}
