"""What was lost, and old history: deleted in steps that keep no batch waiting."""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import Delete

from headgate.control.ranges import OffsetRange
from headgate.ledger import statements
from headgate.ledger.base import Base
from headgate.ledger.engine import Database
from headgate.ledger.records import Loss, Pruned
from headgate.ledger.rows import loss_from, loss_row
from headgate.ledger.statements import DELETE_OLD_BATCHES, DELETE_OLD_RATES, GATES
from headgate.ledger.tables import lost

ROWS_AT_ONCE: Final = 100
"""Rows that one transaction deletes, with the ranges of as many batches: some 10 ms."""


class History(Base):
    """Losses, and the end of old rows."""

    def record_losses(self, gate_name: str, ranges: Iterable[OffsetRange]) -> None:
        """Count offsets that were gone from the source before they were read.

        A loss is known by the position it begins at: recorded again, by a plan that was made again,
        it is counted once, up to the offset it has reached by then.

        Raises:
            LedgerError: The gate is not declared.
        """
        now_ms = self._clock()
        rows = [loss_row(gate_name, offsets, now_ms) for offsets in ranges if offsets.count]
        statement = self._database.insert(lost)
        longer = statement.excluded.until_offset
        statement = statement.on_conflict_do_update(
            index_elements=list(lost.primary_key),
            set_={"until_offset": longer},
            where=lost.c.until_offset < longer,
        )
        if rows:
            with self._database.writing() as connection:
                self._insert_under(gate_name, connection, statement, rows)

    def losses(self, gate_name: str) -> tuple[Loss, ...]:
        """Everything a gate has lost, oldest first."""
        with self._database.reading() as connection:
            return tuple(map(loss_from, connection.execute(statements.LOSSES, {"gate": gate_name})))

    def prune(self, before_ms: int) -> Pruned:
        """Delete what ended before this time: successful batches and rate samples, of all gates.

        A batch whose ranges are not processed is never deleted, whatever its age, nor is a gate's
        newest batch: were it forgotten, an engine that repeats it after a crash would process it
        twice. Losses are kept. Each of its transactions is short, so that no batch waits for it.
        """
        return prune(self._database, before_ms)


def prune(database: Database, before_ms: int) -> Pruned:
    """Delete the successful batches and the rate samples of all gates from before this time."""
    with database.reading() as connection:
        gates = [row.name for row in connection.execute(GATES)]
    return Pruned(
        batches=sum(_delete(database, DELETE_OLD_BATCHES, name, before_ms) for name in gates),
        rates=sum(_delete(database, DELETE_OLD_RATES, name, before_ms) for name in gates),
    )


def _delete(database: Database, statement: Delete, gate: str, before_ms: int) -> int:
    deleted = 0
    values = {"gate": gate, "before_ms": before_ms, "limit": ROWS_AT_ONCE}
    while True:
        with database.writing() as connection:
            step = connection.execute(statement, values).rowcount
        deleted += step
        if step < ROWS_AT_ONCE:
            return deleted
