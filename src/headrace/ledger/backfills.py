"""Batches that failed: who takes them, and what became of them then."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from headrace.ledger import moves, statements
from headrace.ledger.base import Base
from headrace.ledger.engine import changed_rows
from headrace.ledger.records import BatchRecord, ErrorReport, storable
from headrace.ledger.rows import batch_from
from headrace.ledger.status import Status

OWNER_GONE: Final = ErrorReport(
    "OwnerGone",
    "The process that ran this batch is gone: it ended, or stopped renewing its lease, before it "
    "told the outcome.",
    "",
)
"""Why a batch failed that was settled."""

NOT_RUN_AGAIN: Final = ErrorReport(
    "NotRunAgain",
    "The query was stopped while this batch ran, and has been started again without it, as with "
    "another checkpoint; a backfill runs it.",
    "",
)
"""Why a batch failed that was interrupted by a stop and not run again."""


class Backfills(Base):
    """The moves of a batch that failed."""

    def settle(self, gate_name: str, *, but: str | None, unowned_before_ms: int) -> list[str]:
        """Move the live batches, and parts, that nobody runs any more to ``failed`` (arrow E).

        These are ``in_progress``, and either their owner's lease has run out, or they never had an
        owner and are old. Those that a stop of the query interrupted, and its next start does not
        run, are told as failed from now on.

        Args:
            gate_name: Their gate.
            but: The batch that the engine runs again by itself, which is left to it.
            unowned_before_ms: How old a batch without an owner is: created before this time.

        Returns:
            The batches that were moved, earliest created first.
        """
        values = self._failed("", None, OWNER_GONE)
        left_behind = {
            "gate": gate_name,
            "but": but or "",
            "before_ms": unowned_before_ms,
            "move": values["move"],
        }

        not_run = {
            "of": gate_name,
            "but": but or "",
            "error_class": NOT_RUN_AGAIN.error_class,
            "error_message": NOT_RUN_AGAIN.message,
        }

        def settle(connection: Connection) -> list[str]:
            connection.execute(statements.LEAVE_INTERRUPTED, not_run)
            found = sorted(map(tuple, connection.execute(statements.LEFT_BEHIND, left_behind)))
            return [
                key
                for _, key in found
                if changed_rows(connection, moves.SETTLE, {**values, "batch": key})
            ]

        return self._database.write(settle)

    def failed(
        self, gate_name: str | None = None, limit: int = 100, *, waits_ms: Sequence[int] = ()
    ) -> tuple[BatchRecord, ...]:
        """What a backfill could take now, earliest created first, of one gate or of all.

        These batches are ``failed``, or ``backfilling`` with a lease that has run out.

        Args:
            gate_name: The gate, or None for all.
            limit: How many at most.
            waits_ms: How long a batch is to wait after its last run: after 0, 1, 2 ... backfills of
                it that failed, and the last one after more. Those that wait are left out.
        """
        query = statements.FAILED_BATCHES
        if waits_ms:
            query = query.where(statements.has_waited(waits_ms, self._clock()))
        return self._batches(query, gate=gate_name, limit=limit)

    def take(self, schedule_id: str, owner: str, lease_ms: int) -> BatchRecord | None:
        """Move a batch from ``failed`` to ``backfilling`` (arrow F).

        One that is ``backfilling`` can be taken too, once its owner's lease has run out (H, then
        F): that backfill was cut short, has failed, and counts as an attempt. The error that it
        failed with before stays.

        Args:
            schedule_id: The batch.
            owner: Names one run of a backfill.
            lease_ms: How long the batch is the owner's, unless it is renewed.

        Returns:
            Its row as it is now, or None if it cannot be taken; nothing is changed then.
        """
        taker = {"batch": schedule_id, "by": owner, "move": moves.new_move()}

        def take(connection: Connection) -> BatchRecord | None:
            if changed_rows(connection, moves.TAKE, taker | self._leased(lease_ms)) == 0:
                return None
            row = connection.execute(statements.BATCH, {"schedule_id": schedule_id})
            return batch_from(row.mappings().one())

        return self._database.write(take)

    def backfilled(self, schedule_id: str, owner: str, *, records: int | None = None) -> bool:
        """Move a batch from ``backfilling`` to ``success`` (arrow G); its error is cleared.

        Returns:
            Whether it was the owner's; if not, nothing is changed.
        """
        values = self._ended(schedule_id, owner, records)
        return self._database.change(moves.BACKFILLED, values) == 1

    def give_back(
        self,
        schedule_id: str,
        owner: str,
        error: BaseException | ErrorReport,
        *,
        max_backfills: int,
        cut_short: bool = False,
    ) -> Status | None:
        """Move a batch from ``backfilling`` to ``failed`` (arrow H), or at last to ``dead`` (I).

        Args:
            schedule_id: The batch.
            owner: Whose it is.
            error: Why the backfill failed.
            max_backfills: The batch is dead when so many backfills of it have failed, this one
                counted; however often the live stream has begun it.
            cut_short: Whether it may be in its sink though it failed: the run did not raise by
                itself.

        Returns:
            Its status now, or None if it was not the owner's; nothing is changed then.
        """
        values = self._failed(schedule_id, owner, error) | {"cut": cut_short}
        spared = {**values, "most_backfills": max_backfills}

        def give_back(connection: Connection) -> Status | None:
            if changed_rows(connection, moves.GIVE_BACK, spared):
                return Status.FAILED
            return Status.DEAD if changed_rows(connection, moves.GIVE_UP, values) else None

        return self._database.write(give_back)

    def bury(self, schedule_id: str, owner: str, error: BaseException | ErrorReport) -> bool:
        """Move a batch from ``backfilling`` to ``dead`` (arrow I), whatever its attempts.

        Returns:
            Whether it was the owner's; if not, nothing is changed.
        """
        return self._database.change(moves.BURY, self._failed(schedule_id, owner, error)) == 1

    def drop(self, schedule_id: str, reason: str) -> bool:
        """Say that a dead batch need not be looked after any more, and why; it stays ``dead``.

        Returns:
            Whether it is dead, and was not dropped for another reason; if not, nothing is changed.
        """
        values = {"batch": schedule_id, "why": storable(reason)}
        return self._database.change(statements.DROP, values) == 1
