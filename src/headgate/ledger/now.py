"""The database's own clock, which all who use the ledger have in common."""

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class NowMs(FunctionElement[int]):
    """The database's time, in ms since the epoch; while the statement runs, not as it began."""

    type = BigInteger()
    inherit_cache = True
    name = "now_ms"


@compiles(NowMs, "sqlite")
def _sqlite_now_ms(*_: object, **__: object) -> str:
    return "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@compiles(NowMs, "postgresql")
def _postgresql_now_ms(*_: object, **__: object) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
