"""Batches that somebody looks for."""

from typing import Final

from sqlalchemy import Connection

from headgate.ledger import statements
from headgate.ledger.base import Base
from headgate.ledger.records import BatchRecord, NotMadeGood
from headgate.ledger.status import Status

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
        that was kept as a dead letter is told by `dead_letters`, and what was dropped by nobody.
        """
        return self._batches(statements.FAILURES, gate=gate_name, limit=limit)

    def not_made_good(self, gate_name: str) -> NotMadeGood:
        """How many of a gate's batches, parts and records somebody may have to look after."""
        of_gate = {"gate": gate_name}

        def count(connection: Connection) -> NotMadeGood:
            rows = connection.execute(statements.OPEN_COUNTS, of_gate)
            counts: dict[str, int] = {row.status: row.number for row in rows}
            return NotMadeGood(
                failed=counts.get(Status.FAILED, 0) + counts.get(Status.BACKFILLING, 0),
                dead=counts.get(Status.DEAD, 0),
                letters=connection.execute(statements.WAITING_LETTERS, of_gate).scalar_one(),
            )

        return self._database.read(count)
