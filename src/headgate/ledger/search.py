"""Batches that somebody looks for."""

from typing import Final

from headgate.ledger import statements
from headgate.ledger.base import Base
from headgate.ledger.records import BatchRecord

_ABOVE_ALL_DIGITS: Final = "g"


class Search(Base):
    """What people ask for."""

    def batches_named(self, prefix: str, limit: int = 2) -> tuple[BatchRecord, ...]:
        """Batches and parts whose key begins with these hexadecimal digits, by key."""
        above = prefix + _ABOVE_ALL_DIGITS
        return self._batches(statements.BY_PREFIX, prefix=prefix, above=above, limit=limit)

    def failures(self, gate_name: str | None = None, limit: int = 100) -> tuple[BatchRecord, ...]:
        """What failed and is not made good, earliest created first, of one gate or of all.

        These batches and parts are ``failed``, ``backfilling``, or ``dead`` as a whole; a record
        that was kept as a dead letter is told by `dead_letters`.
        """
        return self._batches(statements.FAILURES, gate=gate_name, limit=limit)
