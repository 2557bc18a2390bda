"""The database's own clock, which all who use the ledger have in common, and leases by it."""

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Engine, bindparam, event, or_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from headrace.core.lease import LONGEST_LEASE_MS
from headrace.errors import LedgerError
from headrace.ledger.tables import control

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


LEASE_END: Final[ColumnElement[int]] = NowMs() + bindparam("lease_ms", type_=BigInteger)
"""When a lease ends that begins now; null where there is none."""


def has_run_out() -> ColumnElement[bool]:
    """Whether the lease of a batch is not in force; unknown where it has none."""
    until_ms = control.c.lease_until_ms
    return or_(until_ms <= NowMs(), until_ms > NowMs() + LONGEST_LEASE_MS)


def lease(lease_ms: int | None) -> dict[str, Any]:
    """The value that `LEASE_END` is bound to.

    Raises:
        LedgerError: It is longer than a lease can be.
    """
    if lease_ms is not None and lease_ms > LONGEST_LEASE_MS:
        raise LedgerError(
            f"A lease of {lease_ms} ms is longer than a lease can be; give {LONGEST_LEASE_MS} ms or"
            " less, and renew it."
        )
    return {"lease_ms": lease_ms}
