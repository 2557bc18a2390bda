"""The ledger's statements: written by name in the files of ``sql/``, for both databases.

A file has one topic. Each statement begins with ``-- name: NAME``, and comments that state its
guarantees. Values are bound, as ``:name``; a value is never part of a statement's text.

``{now}`` is the database's time (ms since the epoch) while the statement runs. ``{expired}`` is
true if the lease of a batch is not in force. Such a lease has expired, or ends further ahead than
any lease can, because the clock was set back. ``{unresolved}`` is true for a failed, backfilling or
dead batch that was not dropped and that the next start of its query does not run again.
``{locked}`` locks the selected rows until the transaction ends; a SQLite file has one writer
anyway.

``{merge(a, b)}`` joins two JSON maps; values of the second map win. ``{item(a, n)}`` is the number
at a place of a JSON list, and ``{word(a, n)}`` the text there. ``{rows(:bounds)}`` are the elements
of a list, each of them ``bound.value``.

``-- part: NAME`` names lines that several statements of a file have in common; ``{NAME}`` in a
statement is replaced by these lines.

A line that ends with ``--? name`` is left out if that value is None. So one statement lists the
rows of one gate or of all gates. The database sees only the conditions in use, and uses their
index. ``IN :names`` binds a list.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    Connection,
    CursorResult,
    Engine,
    TextClause,
    TextualSelect,
    bindparam,
    column,
    event,
    text,
)

from headrace.core.timing import LONGEST_LEASE_MS

FOLDER: Final = Path(__file__).with_name("sql")

Values = dict[str, Any]

_NOW: Final = {
    "sqlite": "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
}
_MACROS: Final = {
    r"\{merge\(([^,]+), ([^)]+)\)\}": {
        "sqlite": r"json_patch(\1, \2)",
        "postgresql": r"CAST(CAST(\1 AS jsonb) || CAST(\2 AS jsonb) AS text)",
    },
    r"\{item\(([^,]+), ([^}]+)\)\}": {
        "sqlite": r"json_extract(\1, '$[' || (\2) || ']')",
        "postgresql": r"CAST(CAST(\1 AS jsonb) ->> CAST(\2 AS integer) AS bigint)",
    },
    r"\{word\(([^,]+), (\d+)\)\}": {
        "sqlite": r"json_extract(\1, '$[\2]')",
        "postgresql": r"(CAST(\1 AS jsonb) ->> \2)",
    },
    r"\{rows\(([^)]+)\)\}": {
        "sqlite": r"json_each(\1) AS bound",
        "postgresql": r"jsonb_array_elements(CAST(\1 AS jsonb)) AS bound(value)",
    },
    r"\{locked\}": {"sqlite": "", "postgresql": "FOR NO KEY UPDATE"},
}
"""Replacements of each pattern, by database."""

_EXPIRED: Final = "(lease_until_ms <= {now} OR lease_until_ms > {now} + {longest})"
_UNRESOLVED: Final = """(batch.status IN ('failed', 'backfilling', 'dead')
  AND batch.resolution IS NULL
  AND NOT (batch.status = 'failed' AND coalesce(batch.error_class, '') = :query_stopped))"""

_OPTIONAL: Final = re.compile(r"\s*--\? (\w+)$")
_LIST: Final = re.compile(r"\bIN :(\w+)")
_ALL_COLUMNS: Final = re.compile(r"(SELECT |RETURNING |\.)\*")


class Statement:
    """One statement of a file in ``sql/``; `execute` binds it to values."""

    def __init__(self, name: str, lines: Sequence[str]) -> None:
        self.name: Final = name
        self._lines: Final = tuple(lines)
        self.optional: Final = frozenset(
            match[1] for line in lines if (match := _OPTIONAL.search(line))
        )
        self.lists: Final = frozenset(_LIST.findall("\n".join(lines)))
        self._names_columns: Final = not _ALL_COLUMNS.search("\n".join(lines))
        self._made: Final = dict[tuple[str, frozenset[str]], TextClause]()
        self._answered: Final = dict[tuple[str, frozenset[str]], TextualSelect]()

    def __repr__(self) -> str:
        return f"Statement({self.name!r})"

    def on(self, dialect: str, given: Iterable[str] = ()) -> TextClause:
        """Return the SQL for a database, with the optional lines of these values."""
        key = dialect, self.optional.intersection(given)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._text(*key)
        return made

    def run(
        self,
        connection: Connection,
        given: Iterable[str],
        values: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any] | None,
    ) -> CursorResult[Any]:
        """Run the statement, and cache the columns of its result.

        SQLAlchemy would compute the columns again for each text. A statement with ``*`` is not
        cached, because a newer schema may add a column.
        """
        key = connection.dialect.name, self.optional.intersection(given)
        cached = self._answered.get(key)
        sent = self.on(*key) if cached is None else cached
        result = connection.execute(sent, values, execution_options=options)
        if cached is None and result.returns_rows and self._names_columns:
            self._answered[key] = self.on(*key).columns(*map(column, result.keys()))
        return result

    def _text(self, dialect: str, given: frozenset[str]) -> TextClause:
        lines = []
        for line in self._lines:
            optional = _OPTIONAL.search(line)
            if optional is None or optional[1] in given:
                lines.append(_OPTIONAL.sub("", line))
        sql = "\n".join(lines).replace("{unresolved}", _UNRESOLVED).replace("{expired}", _EXPIRED)
        sql = sql.replace("{now}", _NOW[dialect]).replace("{longest}", str(LONGEST_LEASE_MS))
        for pattern, replacements in _MACROS.items():
            sql = re.sub(pattern, replacements[dialect], sql)
        lists = _LIST.findall(sql)
        return text(sql).bindparams(*(bindparam(name, expanding=True) for name in lists))


@cache
def statements(topic: str) -> Mapping[str, Statement]:
    """Return the statements of a file of ``sql/``, by name."""
    text = (FOLDER / f"{topic}.sql").read_text()
    by_name = dict[str, Statement]()
    parts = dict[str, str]()
    for kind, name, body in re.findall(
        r"^-- (name|part): (\w+)\n(.*?)(?=^-- (?:name|part): |\Z)", text, re.M | re.S
    ):
        lines = "\n".join(_lines(body))
        for part, in_full in parts.items():
            lines = lines.replace(f"{{{part}}}", in_full)
        if kind == "part":
            parts[name] = lines
        else:
            by_name[name] = Statement(f"{topic}.{name}", lines.splitlines())
    return by_name


def _lines(body: str) -> list[str]:
    """Return the lines of a statement without comments, where a colon would bind a value."""
    return [line for line in body.splitlines() if line.strip() and not line.startswith("-- ")]


def execute(
    connection: Connection,
    statement: Statement,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    *,
    counted: bool = False,
) -> CursorResult[Any]:
    """Run a statement once, or once for each of several mappings of values.

    Superfluous values are ignored. ``counted`` requests the number of changed rows, which an INSERT
    does not return by default.
    """
    names: Iterable[str] = ()
    if isinstance(values, Mapping):
        names = [name for name, value in values.items() if value is not None]
        # An empty list has no type, so NULL replaces it; no value equals NULL either.
        lists = {name: [*values[name]] or [None] for name in statement.lists.intersection(names)}
        values = {**values, **lists} if lists else values
    options = {"preserve_rowcount": True} if counted else None
    return statement.run(connection, names, values or None, options)


def take_time_from(engine: Engine, clock: Callable[[], int]) -> None:
    """Make an engine take ``{now}`` from this clock (ms since the epoch) instead of its own."""

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def put_in(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> Any:
        for now in _NOW.values():
            statement = statement.replace(now, str(clock()))
        return statement, values


def ends_with(text: str) -> str:
    """Return the pattern of ``LIKE .. ESCAPE '/'`` for texts with this end."""
    return "%" + re.sub(r"[/%_]", r"/\g<0>", text)


def offsets_in(text: str) -> dict[int, int]:
    """Return offsets by partition from a JSON map."""
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}


def offsets_text(offsets: Mapping[int, int]) -> str:
    """Return offsets by partition as a JSON map."""
    return json.dumps(offsets, separators=(",", ":"))
