"""Batches that were split, so that what cannot be processed stands alone."""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from headrace.errors import LedgerError
from headrace.ledger import moves, statements
from headrace.ledger.base import Base
from headrace.ledger.bulk import insert_rows
from headrace.ledger.engine import changed_rows
from headrace.ledger.leases import LEASE_END
from headrace.ledger.records import BatchRecord, PlannedBatch
from headrace.ledger.rows import Values, batch_from, control_row, failure_rows
from headrace.ledger.status import Kind, Status
from headrace.ledger.tables import control, failure


class Parts(Base):
    """The parts of a batch: rows of their own, with keys of their own."""

    def split(
        self,
        schedule_id: str,
        parts: Sequence[PlannedBatch],
        owner: str,
        lease_ms: int,
        *,
        gone: Collection[str] = (),
    ) -> tuple[BatchRecord, ...]:
        """Write the parts of a batch down, before any of them is read.

        A part that is not in the ledger yet becomes ``in_progress`` (arrow A), created right after
        its parent; of the kind ``backfill`` where that is ``backfilling``. One that is there was
        split off before a crash: ``in_progress`` or ``failed`` is taken up again (B, C) unless it
        is another owner's, any other status stays. The parent's lease is renewed; what becomes of
        its row is up to the caller.

        Args:
            schedule_id: The batch, or part, to split.
            parts: Together they read just what it reads.
            owner: Whose it is, and whose the parts become.
            lease_ms: How long they are the owner's, unless they are renewed.
            gone: Owners that are known to be dead, who are replaced at once.

        Returns:
            The parts' rows as they are now, in the order given. Those that are ``in_progress`` and
            the owner's are the caller's to run.

        Raises:
            LedgerError: The batch is not the owner's, or these are not its parts.
        """
        splitter = {"batch": schedule_id, "by": owner, "move": moves.new_move()}

        def split(connection: Connection) -> tuple[BatchRecord, ...]:
            leased = splitter | self._leased(lease_ms)
            if changed_rows(connection, moves.RENEW, leased) == 0:
                raise LedgerError(
                    f"Batch {schedule_id} in the ledger {self._database.name} does not belong to "
                    f"{owner!r}, so it is not split; whoever owns it runs it."
                )
            parent = _batch(connection, schedule_id)
            _refuse_others(parent, parts)
            for number, part in enumerate(parts, start=1):
                created_ms = parent.created_time_ms + number
                row = control_row(part, part.schedule_id, created_ms, splitter["move"])
                row |= {
                    "kind": _kind_of_parts(parent),
                    "owner": owner,
                    "lease_ms": leased["lease_ms"],
                    "parent": schedule_id,
                }
                self._begin_part(connection, part, row, gone)
            return tuple(_batch(connection, part.schedule_id) for part in parts)

        return self._database.write(split)

    def parts(self, schedule_id: str) -> tuple[BatchRecord, ...]:
        """What a batch was split into, in the order of the split; nothing where it never was."""
        return self._batches(statements.PARTS, schedule_id=schedule_id)

    def _begin_part(
        self, connection: Connection, part: PlannedBatch, row: Values, gone: Collection[str]
    ) -> None:
        insert = self._database.insert(control).on_conflict_do_nothing()
        statement = insert.values(lease_until_ms=LEASE_END)
        del row["lease_until_ms"]
        if changed_rows(connection, statement, row):
            insert_rows(connection, failure, failure_rows(part, row["schedule_id"]))
            return
        taken_up = {
            "batch": row["schedule_id"],
            "whole": row["parent"],
            "by": row["owner"],
            "move": row["last_move"],
            "lease_ms": row["lease_ms"],
            "gone": list(gone),
        }
        connection.execute(moves.BEGIN_PART_AGAIN, taken_up)


def _batch(connection: Connection, schedule_id: str) -> BatchRecord:
    row = connection.execute(statements.BATCH, {"schedule_id": schedule_id})
    return batch_from(row.mappings().one())


def _kind_of_parts(parent: BatchRecord) -> Kind:
    return Kind.BACKFILL if parent.status is Status.BACKFILLING else parent.kind


def _refuse_others(parent: BatchRecord, parts: Sequence[PlannedBatch]) -> None:
    own = all((part.gate, part.run_id) == (parent.gate, parent.run_id) for part in parts)
    counts = [part.records for part in parts]
    if not (own and len(parts) > 1 and all(counts) and sum(counts) == parent.planned_records):
        raise LedgerError(
            f"Batch {parent.schedule_id} of gate {parent.gate!r} has {parent.planned_records} "
            f"offsets and cannot be split into parts of {counts}; two or more parts of the same "
            "gate and run share its offsets, and none is empty."
        )
