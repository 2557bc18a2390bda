"""How long a batch is its owner's: leases, measured by the database's clock alone."""

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, bindparam, or_

from headrace.core.lease import LONGEST_LEASE_MS
from headrace.errors import LedgerError
from headrace.ledger.now import NowMs
from headrace.ledger.tables import control

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
