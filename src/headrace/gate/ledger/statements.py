"""The ledger's SQL statements, read by name from the files in ``sql/`` for both databases.

A file contains the statements of one topic. Each statement begins with ``-- name: NAME`` and with
comments about its guarantees. Values are always bound as ``:name``, and never inserted into the
text.

``{now}`` is the database's time (ms since the epoch) while the statement runs. ``{expired}`` is
true if the lease of a batch is not in force. Such a lease has ended, or ends later than now plus
the longest allowed lease, because the clock was set back. ``{unresolved}`` is true for a failed,
backfilling or dead batch that was not dropped. It is false for a batch that the next start of its
query runs again. ``{locked}`` locks the selected rows until the transaction ends; SQLite does not
need it, because a file has one writer.

``{merge(a, b)}`` joins two JSON maps; values of the second map win. ``{item(a, n)}`` is the number
at index ``n`` of a JSON list, and ``{word(a, n)}`` is the text at index ``n``. ``{rows(:bounds)}``
returns the elements of a JSON list as rows, with the column ``bound.value``.

``-- part: NAME`` names lines that several statements of a file share. ``{NAME}`` in a statement is
replaced by these lines.

A line that ends with ``--? name`` is omitted if the value ``name`` is None. So one statement can
select the rows of one gate or of all gates, and the database uses the index of the remaining
conditions. ``IN :names`` binds a list.
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
"""Regular expression of each macro, and its replacement for each database."""

_EXPIRED: Final = "(lease_until_ms <= {now} OR lease_until_ms > {now} + {longest})"
_UNRESOLVED: Final = """(batch.status IN ('failed', 'backfilling', 'dead')
  AND batch.resolution IS NULL
  AND NOT (batch.status = 'failed' AND coalesce(batch.error_class, '') = :query_stopped))"""

_OPTIONAL: Final = re.compile(r"\s*--\? (\w+)$")
_LIST: Final = re.compile(r"\bIN :(\w+)")
_ALL_COLUMNS: Final = re.compile(r"(SELECT |RETURNING |\.)\*")


class Statement:
    """A named SQL statement from a file in ``sql/``; `execute` runs it with values."""

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
        """Return the SQL for a database, with the optional lines whose names are in ``given``."""
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
        """Execute the statement, and cache the column names of its result.

        Without the cache, SQLAlchemy would compute the columns for each execution. A statement with
        ``*`` is not cached, because a newer schema may add a column.
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
    """Return the statements of the file ``sql/{topic}.sql``, by name."""
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
    """Return the lines without comments: a colon in a comment would be read as a parameter."""
    return [line for line in body.splitlines() if line.strip() and not line.startswith("-- ")]


def execute(
    connection: Connection,
    statement: Statement,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    *,
    counted: bool = False,
) -> CursorResult[Any]:
    """Execute a statement for one mapping of values, or for each of several mappings.

    Values that the statement does not use are ignored. With ``counted``, the result has the number
    of changed rows, even for an INSERT.
    """
    names: Iterable[str] = ()
    if isinstance(values, Mapping):
        names = [name for name, value in values.items() if value is not None]
        # An empty list has no type in SQL, so it is bound as NULL, which equals no value.
        lists = {name: [*values[name]] or [None] for name in statement.lists.intersection(names)}
        values = {**values, **lists} if lists else values
    options = {"preserve_rowcount": True} if counted else None
    return statement.run(connection, names, values or None, options)


def take_time_from(engine: Engine, clock: Callable[[], int]) -> None:
    """Replace ``{now}`` in an engine's statements by the time of ``clock`` (ms since the epoch)."""

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def put_in(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> Any:
        for now in _NOW.values():
            statement = statement.replace(now, str(clock()))
        return statement, values


def ends_with(text: str) -> str:
    """Return a pattern for ``LIKE .. ESCAPE '/'`` that matches texts ending with ``text``."""
    return "%" + re.sub(r"[/%_]", r"/\g<0>", text)


def offsets_in(text: str) -> dict[int, int]:
    """Parse a JSON map from partitions to offsets."""
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}


def offsets_text(offsets: Mapping[int, int]) -> str:
    """Format offsets by partition as a JSON map."""
    return json.dumps(offsets, separators=(",", ":"))
