"""The database's own clock, which all who use the ledger have in common."""

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import BigInteger, Engine, event
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

_SQLITE: Final = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
_POSTGRESQL: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


class NowMs(FunctionElement[int]):
    """The database's time, in ms since the epoch; while the statement runs, not as it began."""

    type = BigInteger()
    inherit_cache = True
    name = "now_ms"


@compiles(NowMs, "sqlite")
def _sqlite_now_ms(*_: object, **__: object) -> str:
    return _SQLITE


@compiles(NowMs, "postgresql")
def _postgresql_now_ms(*_: object, **__: object) -> str:
    return _POSTGRESQL


def take_time_from(engine: Engine, clock: Callable[[], int]) -> None:
    """Have what an engine executes take `NowMs` from this clock in place of the database's."""

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def put_in(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> Any:
        for now in (_SQLITE, _POSTGRESQL):
            statement = statement.replace(now, str(clock()))
        return statement, values
