"""Batches that somebody looks for."""

from typing import Final

from sqlalchemy import Connection

from headrace.ledger import statements
from headrace.ledger.base import Base
from headrace.ledger.records import BatchRecord, NotMadeGood
from headrace.ledger.status import Status
from headrace.ledger.tables import control

_ABOVE_ALL_DIGITS: Final = "g"


class Search(Base):
    """What people ask for."""

    def batches_named(self, prefix: str, limit: int = 2) -> tuple[BatchRecord, ...]:
        """Batches and parts whose key begins with these hexadecimal digits, by key."""
        above = prefix + _ABOVE_ALL_DIGITS
        return self._batches(statements.BY_PREFIX, prefix=prefix, above=above, limit=limit)

    def failures(
        self,
        gate_name: str | None = None,
        limit: int = 100,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        error_class: str | None = None,
    ) -> tuple[BatchRecord, ...]:
        """What failed and is not made good, earliest created first, of one gate or of all.

        These batches and parts are ``failed``, ``backfilling``, or ``dead`` as a whole; a record
        that was kept as a dead letter is told by `dead_letters`, and what was dropped by nobody.

        Args:
            gate_name: The gate, or None for all.
            limit: How many at most.
            since_ms: Created at this time or later.
            until_ms: Created before this time.
            error_class: The class of the exception, with its module or without.
        """
        query = statements.FAILURES.limit(limit).where(
            *statements.created_within(control.c.created_time_ms, since_ms, until_ms)
        )
        if error_class is not None:
            query = query.where(statements.is_error(control.c.error_class, error_class))
        return self._batches(query, gate=gate_name)

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
