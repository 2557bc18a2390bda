"""The batches of a gate: plans, transitions and queries.

The planner counts every batch that the engine asks for in the gate's row, beside the query that
owns the gate. The handler takes the last batch that its own query has begun, if the count has moved
since its last call. The status alone would not tell a finished batch from a batch of another
checkpoint with the same number.

The owner of a batch renews a lease in the batch's row. The owner's name contains the machine, the
process and the start time. So after a crash on the same machine, nobody waits for the lease to
expire.
"""

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
    """Batches of a ledger.

    A method with a key and an owner changes nothing if the batch has another owner, or another
    state than the transition needs. The return value reports this. An owner names one run of a
    query or of a backfill. A lease is the time for which a batch belongs to its owner unless the
    owner renews the lease.
    """

    def begin(self, batch: PlannedBatch, *, query: str | None = None) -> BatchRecord:
        """Write the plan of a batch before any of its records are read.

        A new batch becomes ``in_progress`` (transition A): its row and the rows of its ranges are
        written together. Its created time is above the created times of the gate's earlier batches,
        even if the clock was set back. An engine that repeats its last planned batch after a crash
        begins an existing batch again. An ``in_progress`` or ``failed`` batch then gets one more
        attempt (B, C), and keeps its first plan. Any other status stays: the batch had finished
        before the crash (``success``), or belongs to a backfill.

        Args:
            batch: The plan.
            query: The query that must own the gate, if the caller has claimed the gate.

        Returns:
            The current row of the batch. The caller runs the batch only if the row is
            ``in_progress``.

        Raises:
            GateInUseError: Another query owns the gate; nothing is changed.
            LedgerError: The gate is not declared, the batch has no offsets, or the ledger has other
                ranges for this batch.
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
        """Return the values of a new row; every try of one call uses the same values."""
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
        """Write where a checkpoint begins, as empty ranges; known partitions stay unchanged."""

        def begin(connection: Connection) -> None:
            with self._under(start.gate):
                checkpoints.record_start(connection, start)

        self._database.write(begin)

    def add_unknown(self, batch: PlannedBatch, error: ErrorReport, query: str) -> None:
        """Add a ``dead`` batch for planned ranges whose rows are gone.

        Raises:
            GateInUseError: Another query owns the gate; nothing is changed.
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
        """Record the engine's number of a batch, and the owner of the batch.

        This also counts a run of the gate's handler, which must be the gate's next run. A run that
        waits for another run first is counted by `GateStore.next_sequence`.

        Args:
            batch_key: The batch.
            query_batch_id: The engine's own number for the batch.
            start_time_ms: Start of the run. Default: now.
            owner: The new owner. It replaces another owner whose lease has expired.
            lease_ms: Length of the lease (ms).
            gone: An owner known to be dead, which is replaced at once.

        Returns:
            The data that the owner needs to run the batch. None if the batch is not
            ``in_progress``, or has another owner; nothing is changed then.
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
            if row is None:  # Another process has just changed the batch; one number is skipped.
                return None
            return Attached(batch_from(row), ranges_of(connection, batch_key), sequence)

        return self._database.write(attach)

    def retry(self, batch_key: str, owner: str, lease_ms: int) -> bool:
        """Count one more attempt of a batch that its owner runs again in place (transition B)."""
        values = {"batch": batch_key, "by": owner, "call": new_call_id()}
        return self._changes(RETRY.statement, lambda: values | self._leased(lease_ms))

    def renew(self, batch_key: str, owner: str, lease_ms: int) -> bool:
        """Renew the lease of a batch for ``lease_ms`` from now.

        Returns:
            Whether the batch still belongs to the owner, even with an expired lease. If not, no
            outcome that the owner reports will count.
        """
        values = {"batch": batch_key, "by": owner}
        # A lost renewal only makes the lease end one renewal earlier; the owner renews again.
        return self._changes(_SQL["renew"], lambda: values | self._leased(lease_ms), durable=False)

    def succeed(
        self, batch_key: str, *, records: int | None = None, owner: str | None = None
    ) -> bool:
        """Move a batch from ``in_progress`` to ``success`` (transition D).

        The number of records is stored if the caller knows the number; a rate sample stores the
        number too.
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

        ``outcome_unknown`` says that the failed batch may be in its sink: the run did not raise by
        itself, or the cause of its end is unknown.
        """
        values = self._failed(batch_key, owner, error) | {"unknown": outcome_unknown}
        return self._changes(FAIL.statement, values)

    def keep_error(self, batch_key: str, error: BaseException | ErrorReport) -> bool:
        """Store an error that was raised after the commit of a batch that is ``success``."""
        values = {"batch": batch_key, **error_values(ErrorReport.of(error))}
        return self._changes(_SQL["keep_error"], values)

    def lend(self) -> AbstractContextManager[Connection]:
        """Lend a connection to the ledger's database within a transaction, without a transition.

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

        At the end of the ``with``, the batch moves from ``in_progress`` (transition D) or
        ``backfilling`` (G) to ``success`` in the same transaction. With ``progress``, the batch
        instead stores the progress of one of its parts. ``rejected`` is called at that point, and
        the returned records become dead letters. Either everything is durable, or nothing has
        happened.

        An earlier commit, rollback or close of the connection is refused; savepoints
        (``begin_nested``) are allowed. A SQLite file has one writer at a time: every other writer
        waits until the end. In the same thread, writing methods of this ledger are refused until
        then.

        Raises:
            UnknownCommitError: The answer to the commit was lost; `get` returns the outcome.
            LedgerError: The batch no longer belongs to the owner, the transaction was ended within
                the ``with``, or the database failed. Everything is undone then, and also when the
                caller raises; the caller's exception is passed on unchanged.
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
        """Store the finished parts of a batch, and its convicted records as dead letters.

        One statement marks the next part as running and the previous part as finished, before the
        handler is called. The progress is stored as the fewest possible parts.

        Returns:
            Whether the batch still belongs to the owner; if not, nothing is changed.
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

        A ``backfilling`` batch whose owner's lease has expired can be claimed too (H, then F). Its
        interrupted backfill has failed and counts as an attempt. The error of the batch stays.

        Returns:
            The current row of the batch, or None if the batch cannot be claimed; nothing is changed
            then.
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

        This counts one more failed backfill. `headrace.gate.control.dead.why_dead` decides from the
        row that the owner has claimed whether that backfill was the last: under the owner's lease
        nobody else changes the count.

        Returns:
            The new status, or None if the batch did not belong to the owner; nothing is changed
            then.
        """
        values = self._failed(batch_key, owner, error) | {"unknown": outcome_unknown}
        if is_dead:
            return Status.DEAD if self._changes(RELEASE_AS_DEAD.statement, values) else None
        return Status.FAILED if self._changes(RELEASE.statement, values) else None

    def put_back(self, batch_key: str, owner: str) -> bool:
        """Move a batch with a finished part from ``backfilling`` to ``failed`` (transition J)."""
        return self._changes(PUT_BACK.statement, self._ended(batch_key, owner, None))

    def mark_dead(self, batch_key: str, owner: str, error: BaseException | ErrorReport) -> bool:
        """Move a batch from ``backfilling`` to ``dead`` (transition I), whatever its attempts."""
        return self._changes(MARK_DEAD.statement, self._failed(batch_key, owner, error))

    def supersede(self, cover: PlannedBatch, why: str, query: str) -> list[str]:
        """Resolve the open batches of a gate that its new checkpoint reads again (transition K).

        A batch is resolved even if another owner runs the batch, and first fails for that owner (E,
        H). A batch whose open offsets are all outside of the cover stays unchanged.

        Args:
            cover: The ranges that the new checkpoint reads.
            why: The reason, stored with each batch.
            query: The query that must own the gate.

        Returns:
            The resolved batches, earliest created first.

        Raises:
            GateInUseError: Another query owns the gate; nothing is changed.
            OptionError: The cover has some of a batch's open offsets, but not all; a backfill would
                process the covered offsets twice. Nothing is changed.
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

        These batches are ``in_progress``. Their owner's lease has expired, or they had no owner and
        were created before ``unowned_before_ms``. A batch that a stop of the query interrupted, and
        that the query's next start does not run, also counts as failed from now on. The batch
        ``but`` stays unchanged, because the engine runs this batch again.

        Returns:
            The moved batches, earliest created first.
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
            abandoned = sorted(map(tuple, execute(connection, _SQL["left_behind"], left_behind)))
            return [
                key
                for _, key in abandoned
                if changed_rows(connection, RESOLVE_ABANDONED.statement, {**values, "batch": key})
            ]

        return self._database.write(resolve_abandoned)

    def isolated(self, gate_name: str, since_ms: int) -> dict[str, ErrorReport]:
        """Return the batches planned since a time that have records on which the handler raised.

        The result is by key, the batch with the newest such record first. Each report is the
        handler's error for the batch's newest record, without the trace. Batches whose parts all
        passed do not count, nor do records that the handler rejected. Only the newest of very many
        such records are read.
        """
        bad = self._database.rows(
            _SQL["bad"], gate=gate_name, since_ms=since_ms, rejected=REJECTED, bad_value=BAD_VALUE
        )
        reports: dict[str, ErrorReport] = {}
        for row in bad:
            reports.setdefault(row.batch_key, ErrorReport(row.error_class, row.error_message, ""))
        return reports

    def get(self, batch_key: str) -> BatchRecord | None:
        """Return one batch; None if the ledger does not have the batch."""
        return next(iter(self._select("batch", batch=batch_key)), None)

    def ranges(self, batch_key: str) -> tuple[PlannedRange, ...]:
        """Return the ranges of a batch, by topic, partition and offset; ranges never change."""
        return self._database.read(lambda connection: ranges_of(connection, batch_key))

    def servers(self, batch_key: str) -> str | None:
        """Return the brokers with which a batch was planned, or None for an unknown batch."""
        servers: str | None = self._database.scalar(_SQL["servers"], batch=batch_key)
        return servers

    def is_over(self, key: str) -> bool:
        """Return whether the batch or part with this key will not be run any more.

        A commit whose answer was lost may still be pending in the server, for example while the
        server waits for a standby. The pending commit holds the row's lock, so this call waits for
        its end.
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
        """Return the newest ``in_progress`` batch of a gate's live stream, or None."""
        newest = self._select("newest", gate=gate_name, status=Status.IN_PROGRESS, limit=1)
        return next(iter(newest), None)

    def live(self, gate_name: str, number: int | None = None) -> BatchRecord | None:
        """Return a gate's newest live batch, or its newest batch with the engine's ``number``."""
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
        """Return the newest batches of one gate or of all gates, newest first.

        Only batches with one of ``statuses`` (default: every status), created at ``since_ms`` or
        later and before ``until_ms``, are returned.
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
            # The index orders the batches of one status, not of several.
            return [
                batch_from(row)
                for status in set(statuses) or [None]
                for row in execute(connection, statement, values | {"status": status}).mappings()
            ]

        batches = self._database.read(newest)
        return tuple(sorted(batches, key=lambda batch: -batch.created_time_ms)[:limit])

    def spans(self, gate_name: str, limit: int) -> list[tuple[int, int | None]]:
        """Return the start and end times (ms) of a gate's newest live batches, newest first.

        The end of a running batch is None.
        """
        rows = self._database.rows(_SQL["spans"], gate=gate_name, limit=limit)
        return [(row.created_time_ms, row.end_time_ms) for row in rows]

    def failed(
        self, gate_name: str | None = None, limit: int = 100, *, waits_ms: Sequence[int] = ()
    ) -> tuple[BatchRecord, ...]:
        """Return the batches that a backfill could claim now, oldest first, of one gate or of all.

        These batches are ``failed``, or ``backfilling`` with an expired lease. ``waits_ms`` lists
        the wait after the last run of a batch with 0, 1, 2 ... failed backfills; its last item also
        applies to higher counts. Batches that still wait are left out.
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

        These batches are ``failed``, ``backfilling`` or ``dead``; dropped batches and dead letters
        are not included. Only batches created at ``since_ms`` or later and before ``until_ms`` are
        returned. ``error_class`` names the exception's class with or without its module.
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
        """Return the batches whose keys begin with these hexadecimal digits, by key."""
        above = prefix + "g"  # "g" sorts behind all hexadecimal digits.
        return self._select("with_prefix", prefix=prefix, above=above, limit=limit)

    def _select(self, name: str, **values: Any) -> tuple[BatchRecord, ...]:
        rows = self._database.rows(_SQL[name], **values)
        return tuple(batch_from(row._mapping) for row in rows)


def ranges_of(connection: Connection, batch_key: str) -> tuple[PlannedRange, ...]:
    """Return the ranges of a batch, by topic, partition and offset.

    LedgerError is raised if two ranges share an offset, because each record could not be run once.
    """
    planned = tuple(
        range_from(row) for row in execute(connection, _SQL["ranges"], {"batch": batch_key})
    )
    if (shared := shared_offsets(planned_range.offsets for planned_range in planned)) is not None:
        raise LedgerError(
            f"The ledger has two ranges of batch {batch_key} with the offsets {shared}, so the"
            " batch is not run; restore the ledger from a copy."
        )
    return planned


def _reads_all(cover: PlannedBatch, batch: BatchRecord, planned: Sequence[PlannedRange]) -> bool:
    """Return whether a cover has all open offsets of a batch; False if the cover has none of them.

    OptionError is raised if the cover has some of the open offsets.
    """
    still_open = batch.open_ranges(planned)
    left = [
        part
        for open_range in still_open
        for part in without(
            [open_range],
            [read.offsets for read in cover.ranges if read.topic_id == open_range.topic_id],
        )
    ]
    if not left:
        return True
    if [open_range.offsets for open_range in left] == [
        open_range.offsets for open_range in still_open
    ]:
        return False
    waits = ", ".join(str(open_range.offsets) for open_range in still_open)
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
