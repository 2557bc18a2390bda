"""Batches: their plans, their transitions, and the queries of them."""

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from sqlalchemy import Connection

from headrace.core.ranges import shared_offsets
from headrace.errors import LedgerError, OptionError
from headrace.gate.control.parts import Progress, is_within
from headrace.gate.ledger import checkpoints
from headrace.gate.ledger.database import Store, changed_rows
from headrace.gate.ledger.dead_letters import insert_letters
from headrace.gate.ledger.error_report import (
    BAD_VALUE,
    NOT_RUN_AGAIN,
    OWNER_GONE,
    QUERY_STOPPED,
    REJECTED,
    ErrorReport,
    error_values,
)
from headrace.gate.ledger.gates import refuse_but
from headrace.gate.ledger.records import (
    Attached,
    BatchRecord,
    DeadLetter,
    PlannedBatch,
    PlannedRange,
    batch_from,
    part_of,
    range_from,
    range_rows,
    without,
)
from headrace.gate.ledger.statements import Values, ends_with, execute, statements
from headrace.gate.ledger.transitions import (
    BACKFILLED,
    BEGIN_AGAIN,
    CLAIM,
    FAIL,
    MARK_DEAD,
    PUT_BACK,
    RELEASE,
    RELEASE_AS_DEAD,
    RESOLVE_ABANDONED,
    RETRY,
    SUCCEED,
    SUPERSEDE,
    Status,
    new_call_id,
)

_SQL: Final = statements("batch")


class BatchStore(Store):
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
        values = self._planned(batch)

        def begin(connection: Connection) -> BatchRecord:
            counted = changed_rows(connection, _SQL["count_begin"], values | {"query": query})
            if counted == 0 and query is not None:
                refuse_but(connection, batch.gate, query)
            with self._under(batch.gate):
                row = execute(connection, _SQL["new"], values).mappings().one_or_none()
            if row is None:
                return self._begin_again(connection, batch, values)
            execute(connection, _SQL["new_range"], range_rows(batch))
            checkpoints.record_plan(connection, batch, batch.batch_key)
            checkpoints.advance_position(connection, batch)
            return batch_from(row)

        return self._database.write(begin)

    def _planned(self, batch: PlannedBatch) -> dict[str, Any]:
        """Return the values of a new row; each try of the same call has the same."""
        return {
            "batch": batch.batch_key,
            "gate": batch.gate,
            "checkpoint_id": batch.checkpoint_id,
            "reason": batch.reason,
            "planned_records": batch.records,
            "planned_bytes": batch.bytes,
            "lag": batch.lag,
            "rate_per_s": batch.rate_per_s,
            "call": new_call_id(),
            "now_ms": self._clock(),
        }

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
        values = self._planned(batch) | error_values(error)

        def add(connection: Connection) -> None:
            refuse_but(connection, batch.gate, query)
            with self._under(batch.gate):
                if changed_rows(connection, _SQL["new_dead"], values) == 0:
                    return
            execute(connection, _SQL["new_range"], range_rows(batch))
            checkpoints.record_unknown(connection, batch)
            checkpoints.advance_position(connection, batch)

        self._database.write(add)

    def _begin_again(
        self, connection: Connection, batch: PlannedBatch, values: Values
    ) -> BatchRecord:
        stored = {planned.offsets for planned in ranges_of(connection, batch.batch_key)}
        if stored != {planned.offsets for planned in batch.ranges if planned.offsets.count}:
            raise LedgerError(
                f"The ledger {self._database.name} has other ranges for batch {batch.batch_key} of "
                f"gate {batch.gate!r} than the batch itself, so its rows were changed or damaged; "
                "restore it from a copy."
            )
        execute(connection, BEGIN_AGAIN.statement, values)
        checkpoints.begin_again(connection, batch, batch.batch_key)
        return _batch(connection, batch.batch_key)

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
            sequence = execute(connection, _SQL["next_sequence_of"], leased).scalar()
            if sequence is None:
                return None
            row = execute(connection, _SQL["attach"], leased).mappings().one_or_none()
            if row is None:  # It was changed just now; one number is skipped.
                return None
            return Attached(batch_from(row), ranges_of(connection, batch_key), sequence)

        return self._database.write(attach)

    def retry(self, batch_key: str, owner: str, lease_ms: int) -> bool:
        """Count one attempt more of a batch that its owner runs again in place (transition B)."""
        values = {"batch": batch_key, "by": owner, "call": new_call_id()}
        return self._changes(RETRY.statement, lambda: values | self._leased(lease_ms))

    def renew(self, batch_key: str, owner: str, lease_ms: int) -> bool:
        """Keep a batch for as long again, from now on, while it is worked on.

        Returns:
            Whether it is still the owner's, be the lease run out or not; if not, whatever the owner
            makes of the batch will not be counted.
        """
        values = {"batch": batch_key, "by": owner}
        # Losing it makes the lease end one renewal earlier; its owner then renews it again.
        return self._changes(_SQL["renew"], lambda: values | self._leased(lease_ms), durable=False)

    def succeed(
        self, batch_key: str, *, records: int | None = None, owner: str | None = None
    ) -> bool:
        """Move a batch from ``in_progress`` to ``success`` (transition D).

        Its number of records is kept if the caller knows it; a rate sample says it too.
        """
        return self._changes(SUCCEED.statement, self._ended(batch_key, owner, records))

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
        return self._changes(FAIL.statement, values)

    def keep_error(self, batch_key: str, error: BaseException | ErrorReport) -> bool:
        """Keep an error that was raised after the commit with a batch that is ``success``."""
        values = {"batch": batch_key, **error_values(ErrorReport.of(error))}
        return self._changes(_SQL["keep_error"], values)

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
                is_ours = changed_rows(connection, _SQL["keep_progress"], parts) > 0
            else:
                values = self._ended(batch_key, owner, records)
                is_ours = any(
                    changed_rows(connection, transition, values)
                    for transition in (SUCCEED.statement, BACKFILLED.statement)
                )
            if not is_ours:
                raise LedgerError(
                    f"Batch {batch_key} in the ledger {self._database.name} does not belong to "
                    f"{owner!r} any more, so what was written for it is undone; whoever owns it "
                    "now runs it."
                )
            insert_letters(connection, batch_key, rejected(), self._clock())

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
            if changed_rows(connection, _SQL["keep_progress"], values) == 0:
                return False
            insert_letters(connection, batch_key, letters, self._clock())
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
        claimer = {"batch": batch_key, "by": owner, "call": new_call_id()}

        def claim(connection: Connection) -> BatchRecord | None:
            if changed_rows(connection, CLAIM.statement, claimer | self._leased(lease_ms)) == 0:
                return None
            return _batch(connection, batch_key)

        return self._database.write(claim)

    def backfilled(self, batch_key: str, owner: str, *, records: int | None = None) -> bool:
        """Move a batch from ``backfilling`` to ``success`` (transition G); its error is cleared."""
        return self._changes(BACKFILLED.statement, self._ended(batch_key, owner, records))

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
            return Status.DEAD if self._changes(RELEASE_AS_DEAD.statement, values) else None
        return Status.FAILED if self._changes(RELEASE.statement, values) else None

    def put_back(self, batch_key: str, owner: str) -> bool:
        """Move a batch from ``backfilling`` to ``failed`` (transition J): a part of it is done."""
        return self._changes(PUT_BACK.statement, self._ended(batch_key, owner, None))

    def mark_dead(self, batch_key: str, owner: str, error: BaseException | ErrorReport) -> bool:
        """Move a batch from ``backfilling`` to ``dead`` (transition I), whatever its attempts."""
        return self._changes(MARK_DEAD.statement, self._failed(batch_key, owner, error))

    def supersede(self, cover: PlannedBatch, why: str, query: str) -> list[str]:
        """Settle the open batches of a gate that its new checkpoint reads again (transition K).

        A batch is settled whoever runs it, and before that fails for its owner (E, H). A batch
        whose open offsets are all outside of the cover stays as it is.

        Args:
            cover: The ranges that the new checkpoint reads.
            why: The reason, kept with each batch.
            query: The query that must own the gate.

        Returns:
            The batches that were settled, earliest created first.

        Raises:
            GateInUseError: Another query stands behind the gate; nothing is changed.
            OptionError: The cover has some of a batch's open offsets, and not all; a backfill would
                process them again. Nothing is changed.
        """

        def supersede(connection: Connection) -> list[str]:
            refuse_but(connection, cover.gate, query)
            values = {"gate": cover.gate, "checkpoint_id": cover.checkpoint_id}
            rows = execute(connection, _SQL["open_of_others"], values).mappings().all()
            batches = sorted(map(batch_from, rows), key=lambda batch: batch.created_time_ms)
            return [
                batch.batch_key
                for batch in batches
                if _reads_all(cover, batch, ranges_of(connection, batch.batch_key))
                and self._supersede(connection, batch, why)
            ]

        return self._database.write(supersede)

    def _supersede(self, connection: Connection, batch: BatchRecord, why: str) -> bool:
        gone = self._failed(batch.batch_key, batch.owner, OWNER_GONE) | {"unknown": True}
        if batch.status is Status.IN_PROGRESS:
            changed_rows(connection, FAIL.statement, gone)
        elif batch.status is Status.BACKFILLING:
            changed_rows(connection, RELEASE.statement, gone)
        values = {"batch": batch.batch_key, "why": why, "call": new_call_id()}
        return changed_rows(connection, SUPERSEDE.statement, values) > 0

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
            "gate": gate_name,
            "but": but or "",
            "query_stopped": QUERY_STOPPED,
            "error_class": NOT_RUN_AGAIN.error_class,
            "error_message": NOT_RUN_AGAIN.message,
        }

        def resolve_abandoned(connection: Connection) -> list[str]:
            execute(connection, _SQL["leave_interrupted"], not_run)
            found = sorted(map(tuple, execute(connection, _SQL["left_behind"], left_behind)))
            return [
                key
                for _, key in found
                if changed_rows(connection, RESOLVE_ABANDONED.statement, {**values, "batch": key})
            ]

        return self._database.write(resolve_abandoned)

    def isolated(self, gate_name: str, since_ms: int) -> dict[str, ErrorReport]:
        """Batches planned since then with records that are bad because the handler raised.

        By key, the batch with the newest record first, each with what the handler raised for its
        newest one, without the trace. Batches of which each part passed, and records that the
        handler rejected, do not count. Of very many such records the newest are looked at.
        """
        bad = self._database.rows(
            _SQL["bad"], gate=gate_name, since_ms=since_ms, rejected=REJECTED, bad_value=BAD_VALUE
        )
        found: dict[str, ErrorReport] = {}
        for row in bad:
            found.setdefault(row.batch_key, ErrorReport(row.error_class, row.error_message, ""))
        return found

    def get(self, batch_key: str) -> BatchRecord | None:
        """One batch, if it is in the ledger."""
        return next(iter(self._select("batch", batch=batch_key)), None)

    def ranges(self, batch_key: str) -> tuple[PlannedRange, ...]:
        """Return the ranges of a batch, by topic, partition and offset; they never change."""
        return self._database.read(lambda connection: ranges_of(connection, batch_key))

    def servers(self, batch_key: str) -> str | None:
        """The brokers on which a batch was planned; None where it is not in the ledger."""
        servers: str | None = self._database.scalar(_SQL["servers"], batch=batch_key)
        return servers

    def is_over(self, key: str) -> bool:
        """Whether what has this key, a batch or a part of one, will not be run any more.

        A commit whose answer was lost may still be on its way in the server, as one that waits for
        a standby. It holds the row's lock, and is waited for.
        """
        batch_key, path = part_of(key)

        def behind_its_lock(connection: Connection) -> BatchRecord | None:
            rows = execute(connection, _SQL["locked_batch"], {"batch": batch_key}).mappings()
            row = rows.one_or_none()
            return None if row is None else batch_from(row)

        batch = self._database.write(behind_its_lock)
        if batch is None:
            return False
        return batch.status in {Status.SUCCESS, Status.DEAD} or is_within(path, batch.parts.done)

    def open_batch(self, gate_name: str) -> BatchRecord | None:
        """The newest batch of the gate's live stream that is ``in_progress``, if there is one."""
        newest = self._select("newest", gate=gate_name, status=Status.IN_PROGRESS, limit=1)
        return next(iter(newest), None)

    def live(self, gate_name: str, number: int | None = None) -> BatchRecord | None:
        """The newest batch of a gate's live stream, or the newest with the engine's ``number``."""
        newest = self._select("newest", gate=gate_name, number=number, limit=1)
        return next(iter(newest), None)

    def newest(
        self,
        gate_name: str | None = None,
        limit: int = 100,
        *,
        statuses: Collection[Status] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> tuple[BatchRecord, ...]:
        """The last batches of one gate or of all, newest first; of every status if none is named.

        They were created at ``since_ms`` or later, and before ``until_ms``.
        """
        values = {
            "gate": gate_name,
            "since_ms": since_ms,
            "until_ms": until_ms,
            "limit": limit,
            "all_but_one": limit - 1,
        }
        statement = _SQL["newest_of_all" if gate_name is None else "newest"]

        def newest(connection: Connection) -> list[BatchRecord]:
            # Each status has an index with its own order; there is none over several.
            return [
                batch_from(row)
                for status in set(statuses) or [None]
                for row in execute(connection, statement, values | {"status": status}).mappings()
            ]

        found = self._database.read(newest)
        return tuple(sorted(found, key=lambda batch: -batch.created_time_ms)[:limit])

    def spans(self, gate_name: str, limit: int) -> list[tuple[int, int | None]]:
        """When the last batches of a gate's live stream began and ended (ms), newest first.

        One that runs has not ended: None.
        """
        rows = self._database.rows(_SQL["spans"], gate=gate_name, limit=limit)
        return [(row.created_time_ms, row.end_time_ms) for row in rows]

    def failed(
        self, gate_name: str | None = None, limit: int = 100, *, waits_ms: Sequence[int] = ()
    ) -> tuple[BatchRecord, ...]:
        """Return the batches that a backfill could claim now, oldest first, of one gate or of all.

        These batches are ``failed``, or ``backfilling`` with a lease that has run out. ``waits_ms``
        has the wait after its last run: after 0, 1, 2 ... failed backfills, and the last one after
        more; batches that still wait are left out.
        """
        return self._select(
            "claimable",
            gate=gate_name,
            limit=limit,
            waits=json.dumps(list(waits_ms)) if waits_ms else None,
            last=len(waits_ms) - 1,
            now_ms=self._clock(),
        )

    def unresolved(
        self,
        gate_name: str | None = None,
        limit: int = 100,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        error_class: str | None = None,
    ) -> tuple[BatchRecord, ...]:
        """Return the failed, unresolved batches, oldest first, of one gate or of all.

        They are ``failed``, ``backfilling`` or ``dead``; neither dead letters, nor dropped batches.
        They were created at ``since_ms`` or later, and before ``until_ms``; the class of the
        exception is named with its module or without.
        """
        return self._select(
            "unresolved",
            gate=gate_name,
            limit=limit,
            since_ms=since_ms,
            until_ms=until_ms,
            error_class=error_class,
            error_name=None if error_class is None else ends_with(f".{error_class}"),
            query_stopped=QUERY_STOPPED,
        )

    def with_prefix(self, prefix: str, limit: int = 2) -> tuple[BatchRecord, ...]:
        """Batches whose key begins with these hexadecimal digits, by key."""
        above = prefix + "g"  # above all digits
        return self._select("with_prefix", prefix=prefix, above=above, limit=limit)

    def _select(self, name: str, **values: Any) -> tuple[BatchRecord, ...]:
        rows = self._database.rows(_SQL[name], **values)
        return tuple(batch_from(row._mapping) for row in rows)


def ranges_of(connection: Connection, batch_key: str) -> tuple[PlannedRange, ...]:
    """Return the ranges of a batch, by topic, partition and offset.

    Raises:
        LedgerError: Two of them share an offset, so nobody could run each record once.
    """
    planned = tuple(
        range_from(row) for row in execute(connection, _SQL["ranges"], {"batch": batch_key})
    )
    if (shared := shared_offsets(one.offsets for one in planned)) is not None:
        raise LedgerError(
            f"The ledger has two ranges of batch {batch_key} with the offsets {shared}, so the"
            " batch is not run; restore the ledger from a copy."
        )
    return planned


def _reads_all(cover: PlannedBatch, batch: BatchRecord, planned: Sequence[PlannedRange]) -> bool:
    """Return whether a cover has all open offsets of a batch, or none of them.

    Raises:
        OptionError: It has some of them.
    """
    still_open = batch.open_ranges(planned)
    left = [
        part
        for one in still_open
        for part in without(
            [one], [read.offsets for read in cover.ranges if read.topic_id == one.topic_id]
        )
    ]
    if not left:
        return True
    if [one.offsets for one in left] == [one.offsets for one in still_open]:
        return False
    waits = ", ".join(str(one.offsets) for one in still_open)
    raise OptionError(
        f"Gate {batch.gate!r} begins anew within batch {batch.batch_key}, whose offsets wait for a"
        f" backfill ({waits}) and would be processed twice; begin before them or behind them"
        " (startingOffsets), with a new checkpoint once more."
    )


def _progress_values(
    connection: Connection, batch_key: str, owner: str, progress: Progress
) -> dict[str, Any]:
    records = execute(connection, _SQL["planned_records"], {"batch": batch_key}).scalar() or 0
    return {
        "batch": batch_key,
        "by": owner,
        "progress": progress.to_text() if progress != Progress() else None,
        "done_records": records - progress.records_left(records),
    }


def _batch(connection: Connection, batch_key: str) -> BatchRecord:
    return batch_from(execute(connection, _SQL["batch"], {"batch": batch_key}).mappings().one())
