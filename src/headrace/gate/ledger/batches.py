"""Batches: their plans, and their transitions; `batch_queries` has the queries."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from sqlalchemy import Connection

from headrace.errors import LedgerError
from headrace.gate.control.parts import Progress
from headrace.gate.ledger import batch_rows, checkpoints, transitions
from headrace.gate.ledger.batch_queries import BatchQueries, ranges_of
from headrace.gate.ledger.batch_rows import (
    Values,
    batch_from,
    control_row,
    error_values,
    failure_rows,
)
from headrace.gate.ledger.database import changed_rows, insert_rows
from headrace.gate.ledger.dead_letters import insert_letters
from headrace.gate.ledger.error_report import NOT_RUN_AGAIN, OWNER_GONE, ErrorReport
from headrace.gate.ledger.gates import refuse_but
from headrace.gate.ledger.records import (
    Attached,
    BatchRecord,
    DeadLetter,
    PlannedBatch,
    PlannedRange,
)
from headrace.gate.ledger.tables import batch_range, batch_table
from headrace.gate.ledger.transitions import Status

_PLANNED_RECORDS: Final = batch_rows.BATCH.with_only_columns(batch_table.c.planned_records)


class BatchStore(BatchQueries):
    """The batches of a ledger.

    A method with a key and an owner changes nothing if the batch is not in the state that its
    transition begins in, or has another owner; its return value says so. An owner names one run of
    a query or of a backfill. A lease is how long a batch is its owner's unless it is renewed.
    """

    def begin(self, batch: PlannedBatch, *, query: str | None = None) -> BatchRecord:
        """Write the plan of a batch down, before any of it is read.

        A batch that is not in the ledger yet becomes ``in_progress`` (transition A), its row and
        the rows of its ranges together; its created time is above that of the gate's batches
        before, though the clock be set back. An existing batch is being run again, by an engine
        that repeats its last planned batch after a crash: ``in_progress`` or ``failed`` gets one
        attempt more (B, C), and the first plan is kept. Any other status stays: the batch was
        finished before the crash (``success``), or is a backfill's.

        Args:
            batch: The plan.
            query: The query that must own the gate, if the caller has claimed it.

        Returns:
            The batch's row as it is now. Only if it is ``in_progress`` is the caller to run it.

        Raises:
            GateInUseError: Another query stands behind the gate; nothing is changed.
            LedgerError: The gate is not declared, there is nothing to read, or the ledger's row of
                this batch has other ranges.
        """
        if batch.records == 0:
            raise LedgerError(f"A batch of gate {batch.gate!r} has no offsets to read.")
        batch_key, call_id = batch.batch_key, transitions.new_call_id()
        new = self._database.insert(batch_table).values(created_time_ms=batch_rows.ABOVE_NEWEST)
        statement = new.on_conflict_do_nothing().returning(batch_table.c.created_time_ms)
        count = {
            "of": batch.gate,
            "batch": batch_key,
            "call": call_id,
            "query": query,
            "by_checkpoint": batch.checkpoint_id,
        }

        row = control_row(batch, batch_key, self._clock(), call_id)
        created = {"now_ms": row.pop("created_time_ms"), "of": batch.gate}

        def begin(connection: Connection) -> BatchRecord:
            # First: it locks the gate's row, so that the next batch of this gate waits for this
            # one.
            if changed_rows(connection, batch_rows.COUNT_BEGIN, count) == 0 and query is not None:
                refuse_but(connection, batch.gate, query)
            with self._under(batch.gate):
                created_ms = connection.scalar(statement, row | created)
            if created_ms is None:
                return self._begin_again(connection, batch, batch_key, call_id)
            insert_rows(connection, batch_range, failure_rows(batch, batch_key))
            checkpoints.record_plan(connection, batch, batch_key)
            checkpoints.advance_position(connection, batch)
            return batch_from(row | {"created_time_ms": created_ms})

        return self._database.write(begin)

    def begin_checkpoint(self, start: PlannedBatch) -> None:
        """Write down where a checkpoint begins, by empty ranges; what is known already stays."""

        def begin(connection: Connection) -> None:
            with self._under(start.gate):
                checkpoints.record_start(connection, start)

        self._database.write(begin)

    def add_unknown(self, batch: PlannedBatch, error: ErrorReport, query: str) -> None:
        """Add a ``dead`` batch for ranges that were planned, and whose rows are gone.

        Raises:
            GateInUseError: Another query stands behind the gate; nothing is changed.
        """
        row = control_row(batch, batch.batch_key, self._clock(), transitions.new_call_id())
        row |= {"status": Status.DEAD, "end_time_ms": row["created_time_ms"], **error_values(error)}
        row["attempts"] = 0  # it stands for batches of which nobody knows how often they ran
        new = self._database.insert(batch_table).on_conflict_do_nothing()

        def add(connection: Connection) -> None:
            refuse_but(connection, batch.gate, query)
            with self._under(batch.gate):
                if changed_rows(connection, new, row) == 0:
                    return
            insert_rows(connection, batch_range, failure_rows(batch, batch.batch_key))
            checkpoints.record_unknown(connection, batch)
            checkpoints.advance_position(connection, batch)

        self._database.write(add)

    def _begin_again(
        self, connection: Connection, batch: PlannedBatch, batch_key: str, call_id: str
    ) -> BatchRecord:
        stored = {planned.offsets for planned in ranges_of(connection, batch_key)}
        if stored != {planned.offsets for planned in batch.ranges if planned.offsets.count}:
            raise LedgerError(
                f"The ledger {self._database.name} has other ranges for batch {batch_key} of "
                f"gate {batch.gate!r} than the batch itself, so its rows were changed or damaged; "
                "restore it from a copy."
            )
        connection.execute(transitions.BEGIN_AGAIN, {"batch": batch_key, "call": call_id})
        checkpoints.begin_again(connection, batch, batch_key)
        return _batch(connection, batch_key)

    def attach(
        self,
        batch_key: str,
        query_batch_id: int,
        *,
        start_time_ms: int | None = None,
        owner: str | None = None,
        lease_ms: int = 0,
        gone: str | None = None,
    ) -> Attached | None:
        """Note that the engine processes a batch under this number, and who it belongs to.

        The run of the gate's handler that follows is counted with it. It must be the gate's next
        run: a run that waits for another one first is counted by `GateStore.next_sequence`.

        Args:
            batch_key: The batch.
            query_batch_id: The engine's own number for it.
            start_time_ms: Start of the run. Default: now.
            owner: The new owner. Another owner whose lease has run out is replaced.
            lease_ms: Length of the lease (ms).
            gone: An owner that is known to be dead, who is replaced at once.

        Returns:
            The data that its owner needs to run it. None if the batch is not ``in_progress``, or
            another owner's; nothing is changed then.
        """
        values = {
            "batch": batch_key,
            "number": query_batch_id,
            "started_ms": start_time_ms,
            "by": owner,
            "gone": gone,
        }

        def attach(connection: Connection) -> Attached | None:
            leased = values | self._leased(None if owner is None else lease_ms)
            sequence = connection.scalar(batch_rows.NEXT_SEQUENCE_OF, leased)
            if sequence is None:
                return None
            row = connection.execute(batch_rows.ATTACH_AND_RETURN, leased).mappings().one_or_none()
            if row is None:  # It was changed just now; one number is skipped.
                return None
            return Attached(batch_from(row), ranges_of(connection, batch_key), sequence)

        return self._database.write(attach)

    def retry(self, batch_key: str, owner: str, lease_ms: int) -> bool:
        """Count one attempt more of a batch that its owner runs again in place (transition B)."""
        values = {"batch": batch_key, "by": owner, "call": transitions.new_call_id()}
        return self._changes(transitions.RETRY, lambda: values | self._leased(lease_ms))

    def renew(self, batch_key: str, owner: str, lease_ms: int) -> bool:
        """Keep a batch for as long again, from now on, while it is worked on.

        Returns:
            Whether it is still the owner's, be the lease run out or not; if not, whatever the owner
            makes of the batch will not be counted.
        """
        values = {"batch": batch_key, "by": owner}
        # Losing it makes the lease end one renewal earlier; its owner then renews it again.
        return self._changes(
            transitions.RENEW, lambda: values | self._leased(lease_ms), durable=False
        )

    def succeed(
        self, batch_key: str, *, records: int | None = None, owner: str | None = None
    ) -> bool:
        """Move a batch from ``in_progress`` to ``success`` (transition D).

        Its number of records is kept if the caller knows it; a rate sample says it too.
        """
        return self._changes(transitions.SUCCEED, self._ended(batch_key, owner, records))

    def fail(
        self,
        batch_key: str,
        error: BaseException | ErrorReport,
        *,
        owner: str | None = None,
        outcome_unknown: bool = False,
    ) -> bool:
        """Move a batch from ``in_progress`` to ``failed`` (transition E).

        Its outcome is unknown if it may be in its sink though it failed: its run did not raise by
        itself, or that is not known.
        """
        values = self._failed(batch_key, owner, error) | {"unknown": outcome_unknown}
        return self._changes(transitions.FAIL, values)

    def keep_error(self, batch_key: str, error: BaseException | ErrorReport) -> bool:
        """Keep an error that was raised after the commit with a batch that is ``success``."""
        values = {"batch": batch_key, **error_values(ErrorReport.of(error))}
        return self._changes(batch_rows.KEEP_ERROR, values)

    def lend(self) -> AbstractContextManager[Connection]:
        """Lend a connection to the ledger's database, within a transaction, without a transition.

        Raises:
            LedgerError: The database failed.
        """
        return self._database.lend(lambda _connection: None)

    def transaction(
        self,
        batch_key: str,
        owner: str,
        *,
        records: int | None = None,
        rejected: Callable[[], Sequence[DeadLetter]] = tuple,
        progress: Progress | None = None,
    ) -> AbstractContextManager[Connection]:
        """Lend a connection to the ledger's database; its writes commit with ``success``.

        At its end the batch moves from ``in_progress`` (transition D) or ``backfilling`` (G), in
        the same transaction, or has the ``progress`` of one of its parts; and the records returned
        by ``rejected``, which is called then, become dead letters: either all is durable, or
        nothing has happened. An earlier commit, rollback or
        close of the connection is refused; savepoints (``begin_nested``) are not. A SQLite file has
        one writer at a time: until the end every other one waits, and methods of this ledger that
        write are refused within it in the same thread.

        Raises:
            UnknownCommitError: The answer to the commit was lost; `get` knows.
            LedgerError: The batch is not the owner's any more, the transaction was ended within, or
                the database failed. All is undone then, as it is when the caller raises; that
                exception is passed on as it is.
        """

        def end(connection: Connection) -> None:
            if progress is not None:
                parts = _progress_values(connection, batch_key, owner, progress)
                is_ours = changed_rows(connection, transitions.KEEP_PROGRESS, parts) > 0
            else:
                values = self._ended(batch_key, owner, records)
                is_ours = any(
                    changed_rows(connection, transition, values)
                    for transition in (transitions.SUCCEED, transitions.BACKFILLED)
                )
            if not is_ours:
                raise LedgerError(
                    f"Batch {batch_key} in the ledger {self._database.name} does not belong to "
                    f"{owner!r} any more, so what was written for it is undone; whoever owns it "
                    "now runs it."
                )
            insert_letters(self._database, connection, batch_key, rejected(), self._clock())

        return self._database.lend(end)

    def keep_progress(
        self, batch_key: str, owner: str, progress: Progress, *letters: DeadLetter
    ) -> bool:
        """Write down what was done of a batch's parts, and keep records that are convicted.

        Returns:
            Whether it is still the owner's; if not, nothing is changed.
        """

        def keep(connection: Connection) -> bool:
            values = _progress_values(connection, batch_key, owner, progress)
            if changed_rows(connection, transitions.KEEP_PROGRESS, values) == 0:
                return False
            insert_letters(self._database, connection, batch_key, letters, self._clock())
            return True

        return self._database.write(keep)

    def claim(self, batch_key: str, owner: str, lease_ms: int) -> BatchRecord | None:
        """Move a batch from ``failed`` to ``backfilling`` (transition F).

        One that is ``backfilling`` can be claimed too, once its owner's lease has run out (H, then
        F): that backfill was interrupted, has failed, and counts as an attempt. The error that it
        failed with before stays.

        Returns:
            Its row as it is now, or None if it cannot be claimed; nothing is changed then.
        """
        claimer = {"batch": batch_key, "by": owner, "call": transitions.new_call_id()}

        def claim(connection: Connection) -> BatchRecord | None:
            if changed_rows(connection, transitions.CLAIM, claimer | self._leased(lease_ms)) == 0:
                return None
            return _batch(connection, batch_key)

        return self._database.write(claim)

    def backfilled(self, batch_key: str, owner: str, *, records: int | None = None) -> bool:
        """Move a batch from ``backfilling`` to ``success`` (transition G); its error is cleared."""
        return self._changes(transitions.BACKFILLED, self._ended(batch_key, owner, records))

    def release(
        self,
        batch_key: str,
        owner: str,
        error: BaseException | ErrorReport,
        *,
        is_dead: bool,
        outcome_unknown: bool = False,
    ) -> Status | None:
        """Move a batch from ``backfilling`` to ``failed`` (transition H), or to ``dead`` (I).

        This counts one more failed backfill. Whether it was the last one is decided by
        `headrace.gate.control.dead.why_dead` from the row that the owner has claimed: under its
        lease nobody else changes the count.

        Returns:
            Its status now, or None if it was not the owner's; nothing is changed then.
        """
        values = self._failed(batch_key, owner, error) | {"unknown": outcome_unknown}
        if is_dead:
            return Status.DEAD if self._changes(transitions.RELEASE_AS_DEAD, values) else None
        return Status.FAILED if self._changes(transitions.RELEASE, values) else None

    def put_back(self, batch_key: str, owner: str) -> bool:
        """Move a batch from ``backfilling`` to ``failed`` (transition J): a part of it is done."""
        return self._changes(transitions.PUT_BACK_REST, self._ended(batch_key, owner, None))

    def mark_dead(self, batch_key: str, owner: str, error: BaseException | ErrorReport) -> bool:
        """Move a batch from ``backfilling`` to ``dead`` (transition I), whatever its attempts."""
        return self._changes(transitions.MARK_DEAD, self._failed(batch_key, owner, error))

    def supersede(self, cover: PlannedBatch, why: str, query: str) -> list[str]:
        """Settle the open batches of a gate that its new checkpoint reads again (transition K).

        A batch is settled whoever runs it, and before that fails for its owner (E, H). A batch with
        an open offset outside of the cover stays as it is.

        Args:
            cover: The ranges that the new checkpoint reads.
            why: The reason, kept with each batch.
            query: The query that must own the gate.

        Returns:
            The batches that were settled, earliest created first.

        Raises:
            GateInUseError: Another query stands behind the gate; nothing is changed.
        """

        def is_read(planned: PlannedRange) -> bool:
            return any(
                planned.topic_id == read.topic_id and read.offsets.contains(planned.offsets)
                for read in cover.ranges
            )

        def supersede(connection: Connection) -> list[str]:
            refuse_but(connection, cover.gate, query)
            values = {"of": cover.gate, "by_checkpoint": cover.checkpoint_id}
            rows = connection.execute(batch_rows.OPEN_OF_OTHERS, values).mappings().all()
            batches = sorted(map(batch_from, rows), key=lambda batch: batch.created_time_ms)
            return [
                batch.batch_key
                for batch in batches
                if all(map(is_read, batch.open_ranges(ranges_of(connection, batch.batch_key))))
                and self._supersede(connection, batch, why)
            ]

        return self._database.write(supersede)

    def _supersede(self, connection: Connection, batch: BatchRecord, why: str) -> bool:
        gone = self._failed(batch.batch_key, batch.owner, OWNER_GONE) | {"unknown": True}
        if batch.status is Status.IN_PROGRESS:
            changed_rows(connection, transitions.FAIL, gone)
        elif batch.status is Status.BACKFILLING:
            changed_rows(connection, transitions.RELEASE, gone)
        values = {"batch": batch.batch_key, "why": why, "call": transitions.new_call_id()}
        return changed_rows(connection, transitions.SUPERSEDE, values) > 0

    def resolve_abandoned(
        self, gate_name: str, *, but: str | None, unowned_before_ms: int
    ) -> list[str]:
        """Move live batches that nobody runs any more to ``failed`` (transition E).

        These are ``in_progress``, and either their owner's lease has run out, or they never had an
        owner and were created before ``unowned_before_ms``. Batches that a stop of the query
        interrupted, and that its next start does not run, count as failed from now on. The batch
        ``but``, which the engine runs again by itself, is left to it.

        Returns:
            The batches that were moved, earliest created first.
        """
        values = self._failed("", None, OWNER_GONE)
        left_behind = {
            "gate": gate_name,
            "but": but or "",
            "before_ms": unowned_before_ms,
            "call": values["call"],
        }
        not_run = {
            "of": gate_name,
            "but": but or "",
            "error_class": NOT_RUN_AGAIN.error_class,
            "error_message": NOT_RUN_AGAIN.message,
        }

        def resolve_abandoned(connection: Connection) -> list[str]:
            connection.execute(batch_rows.LEAVE_INTERRUPTED, not_run)
            found = sorted(map(tuple, connection.execute(batch_rows.LEFT_BEHIND, left_behind)))
            return [
                key
                for _, key in found
                if changed_rows(connection, transitions.RESOLVE_ABANDONED, {**values, "batch": key})
            ]

        return self._database.write(resolve_abandoned)


def _progress_values(
    connection: Connection, batch_key: str, owner: str, progress: Progress
) -> Values:
    records = connection.scalar(_PLANNED_RECORDS, {"batch_key": batch_key}) or 0
    return {
        "batch": batch_key,
        "by": owner,
        "progress": progress.to_text() if progress != Progress() else None,
        "done_records": records - progress.records_left(records),
    }


def _batch(connection: Connection, batch_key: str) -> BatchRecord:
    row = connection.execute(batch_rows.BATCH, {"batch_key": batch_key})
    return batch_from(row.mappings().one())
