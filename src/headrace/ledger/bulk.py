"""Many rows in one statement."""

from functools import cache
from typing import Any

from sqlalchemy import Connection, Insert, Table, bindparam, column, func, insert, select
from sqlalchemy.dialects.postgresql import ARRAY


def insert_rows(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows that all name the same columns.

    SQLite takes them one by one, for it is called and not spoken to. PostgreSQL takes one array for
    each column: for 500 rows that is twice as fast as a pipeline of 500 statements.
    """
    if connection.dialect.name == "sqlite":
        connection.execute(insert(table), rows)
    else:
        names = tuple(rows[0])
        arrays = {name: [row[name] for row in rows] for name in names}
        connection.execute(_insert_from_arrays(table, names), arrays)


@cache
def _insert_from_arrays(table: Table, names: tuple[str, ...]) -> Insert:
    arrays = [bindparam(name, type_=ARRAY(table.c[name].type)) for name in names]
    rows = func.unnest(*arrays).table_valued(*map(column, names)).render_derived()
    return insert(table).from_select(names, select(rows), include_defaults=False)
