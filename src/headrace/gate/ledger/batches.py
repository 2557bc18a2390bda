"""The batches of a gate: their plans, their transitions and queries about them.

The gate's row has the number of batches that Spark has requested, and the query that owns the gate.
The handler runs the newest batch of its own query if this number has changed since the handler's
last call. The status and Spark's number of a batch do not identify the batch: a batch of another
checkpoint may have the same status and number.

The owner of a batch renews a lease in the batch's row. The owner's id contains the machine, the
process and the process's start time. So a process on the same machine can see that an owner has
crashed, and need not wait for the lease to expire.
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
    """Batches in the ledger, and their transitions between statuses.

    A method with a key and an owner changes nothing if the batch belongs to another owner, or if
    the batch's status does not allow the transition. The return value reports this. An owner is one
    run of a query or of a backfill. The owner keeps a batch until the owner's lease ends, and can
    renew the lease.
    """

    def begin(self, batch: PlannedBatch, *, query: str | None = None) -> BatchRecord:
        """Write the plan of a batch before any of its records are read.

        A new batch becomes ``in_progress`` (transition A): its row and the rows of its ranges are
        written together. Its created time is later than the created times of the gate's earlier
        batches, even if the clock was set back. After a crash, Spark requests its last planned
        batch again. An existing ``in_progress`` or ``failed`` batch then gets one more attempt (B,
        C), and keeps its first plan. A batch with any other status is not changed: it has finished,
        or a backfill is running it.

        Args:
            batch: The plan of the batch.
            query: Owner that the gate must have. Default: None, no check.

        Returns:
            The row of the batch. The caller must run the batch only if its status is
            ``in_progress``.

        Raises:
            GateInUseError: Another query owns the gate; nothing is changed.
            LedgerError: The gate is not declared, the batch has no offsets, or the ledger has other
                ranges for the batch's key.
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
        """Return the values of a batch's new row, computed once for all retries of a call."""
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
        """Record the start offsets of a checkpoint. ``start`` has them as empty ranges.

        Partitions that the checkpoint already has are not changed.
        """

        def begin(connection: Connection) -> None:
            with self._under(start.gate):
                checkpoints.record_start(connection, start)

        self._database.write(begin)

    def add_unknown(self, batch: PlannedBatch, error: ErrorReport, query: str) -> None:
        """Insert a ``dead`` batch for planned ranges whose batch row is missing.

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
                f"The ranges of batch {batch.batch_key} of gate {batch.gate!r} in the ledger"
                f" {self._database.name} differ from the batch's plan, so the ledger was changed or"
                " damaged; restore it from a backup."
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
        """Record Spark's number of a batch and the batch's owner; return data to run the batch.

        The call also assigns the gate's next sequence number to this run of the handler. If the
        handler runs for another batch first, get a new number from `GateStore.next_sequence`.

        Args:
            batch_key: Key of the batch.
            query_batch_id: Spark's number of the batch.
            start_time_ms: Start time of the run (ms since the epoch). Default: now.
            owner: The new owner. It replaces an owner whose lease has expired.
            lease_ms: Length of the lease (ms).
            gone: A previous owner whose process is known to have ended; it is replaced before its
                lease expires.

        Returns:
            The row and the ranges of the batch, and the sequence number of the run. None, with
            nothing changed, if the batch is not ``in_progress`` or has another owner.
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
        """Count one more attempt of a batch, because the owner runs the batch again (transition B).

        The result is False if another owner has the batch.
        """
        values = {"batch": batch_key, "by": owner, "call": new_call_id()}
        return self._changes(RETRY.statement, lambda: values | self._leased(lease_ms))

    def renew(self, batch_key: str, owner: str, lease_ms: int) -> bool:
        """Renew the lease of a batch for ``lease_ms`` from now.

        Returns:
            True if the batch still belongs to the owner, even with an expired lease. False if it
            does not; later reports of this owner about the batch have no effect.
        """
        values = {"batch": batch_key, "by": owner}
        # If a renewal is lost, the lease ends one renewal earlier; the owner renews it again.
        return self._changes(_SQL["renew"], lambda: values | self._leased(lease_ms), durable=False)

    def succeed(
        self, batch_key: str, *, records: int | None = None, owner: str | None = None
    ) -> bool:
        """Move a batch from ``in_progress`` to ``success`` (transition D).

        ``records`` is the number of processed records. If it is None, the batch's rate sample
        sets the number.
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

        ``outcome_unknown`` means that the batch's records may be in the sink, because the run was
        interrupted, or the cause of the failure is unknown.
        """
        values = self._failed(batch_key, owner, error) | {"unknown": outcome_unknown}
        return self._changes(FAIL.statement, values)

    def keep_error(self, batch_key: str, error: BaseException | ErrorReport) -> bool:
        """Store an error that was raised after a batch had become ``success``."""
        values = {"batch": batch_key, **error_values(ErrorReport.of(error))}
        return self._changes(_SQL["keep_error"], values)

    def lend(self) -> AbstractContextManager[Connection]:
        """Lend a connection to the ledger's database with one transaction for a handler's writes.

        Unlike `transaction`, this changes the status of no batch.

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
        """Lend a connection whose writes commit together with a batch's ``success``.

        At the end of the ``with``, the batch moves from ``in_progress`` (transition D) or
        ``backfilling`` (G) to ``success``. With ``progress``, the batch instead stores the progress
        of its parts. In both cases, the records that ``rejected`` returns become dead letters. All
        of this is one transaction with the caller's writes.

        The caller must not commit, roll back or close the connection; savepoints (``begin_nested``)
        are allowed. A SQLite file has one writer at a time, so all other writers wait until the end
        of the ``with``. Writing methods of this ledger raise an error if the same thread calls them
        before the end.

        Raises:
            UnknownCommitError: The answer to the commit was lost; `get` returns the outcome.
            LedgerError: The batch no longer belongs to the owner, the transaction was ended inside
                of the ``with``, or the database failed. Everything is rolled back then. An
                exception of the caller also rolls back everything, and is passed on unchanged.
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
                    f"{owner!r} any more, so its transaction was rolled back; the new owner runs "
                    "the batch."
                )
            insert_letters(connection, batch_key, rejected(), self._clock())

        return self._database.lend(end)

    def keep_progress(
        self, batch_key: str, owner: str, progress: Progress, *letters: DeadLetter
    ) -> bool:
        """Store a batch's progress in parts, and dead letters of its convicted records.

        Before the handler runs the next part, one statement marks the previous part as finished and
        the next part as running. Finished parts are merged where possible.

        Returns:
            True if the batch still belongs to the owner. False, with nothing changed, if not.
        """

        def keep(connection: Connection) -> bool:
            values = _progress_values(connection, batch_key, owner, progress)
            if changed_rows(connection, _SQL["keep_progress"], values) == 0:
                return False
            insert_letters(connection, batch_key, letters, self._clock())
            return True

        return self._database.write(keep)

    def claim(self, batch_key: str, owner: str, lease_ms: int) -> BatchRecord | None:
        """Move a batch from ``failed`` to ``backfilling`` (transition F), with a new owner.

        A ``backfilling`` batch with an expired lease can be claimed too (H, then F). Its
        interrupted backfill counts as a failed attempt. The batch keeps its error.

        Returns:
            The row of the claimed batch. None, with nothing changed, if the batch cannot be
            claimed.
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

        This counts one more failed backfill. ``is_dead`` is the decision of
        `headrace.gate.control.dead.why_dead` on the claimed row. No other process changes the row
        while the owner's lease is in force.

        Returns:
            The new status. None, with nothing changed, if the batch did not belong to the owner.
        """
        values = self._failed(batch_key, owner, error) | {"unknown": outcome_unknown}
        if is_dead:
            return Status.DEAD if self._changes(RELEASE_AS_DEAD.statement, values) else None
        return Status.FAILED if self._changes(RELEASE.statement, values) else None

    def put_back(self, batch_key: str, owner: str) -> bool:
        """Move a batch back to ``failed`` after a backfill has finished some of its parts (J)."""
        return self._changes(PUT_BACK.statement, self._ended(batch_key, owner, None))

    def mark_dead(self, batch_key: str, owner: str, error: BaseException | ErrorReport) -> bool:
        """Move a batch from ``backfilling`` to ``dead`` (transition I); count no attempt."""
        return self._changes(MARK_DEAD.statement, self._failed(batch_key, owner, error))

    def supersede(self, cover: PlannedBatch, why: str, query: str) -> list[str]:
        """Resolve a gate's open batches whose records a new checkpoint reads again (transition K).

        The new status of these batches is ``dead``, with ``why`` as their resolution. If another
        owner is running a batch, that run first counts as failed (E, H). A batch is not changed if
        all its unprocessed offsets are outside of ``cover``.

        Args:
            cover: Ranges that the new checkpoint reads.
            why: Reason that is stored as the resolution of each batch.
            query: Owner that the gate must have.

        Returns:
            The keys of the resolved batches, earliest created first.

        Raises:
            GateInUseError: Another query owns the gate; nothing is changed.
            OptionError: ``cover`` contains some unprocessed offsets of a batch but not all, so a
                backfill would process some offsets a second time. Nothing is changed.
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
        """Move ``in_progress`` batches that no process runs to ``failed`` (transition E).

        The lease of such a batch's owner has expired, or the batch has no owner and was created
        before ``unowned_before_ms``. The batch ``but`` is not changed, because Spark runs this
        batch again. Batches that are ``failed`` because the query was stopped get the
        error `NOT_RUN_AGAIN`, so that backfills can run them.

        Returns:
            The keys of the moved batches, earliest created first.
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
        """Return the handler's error on the newest bad record of each batch, by batch key.

        A bad record is a dead letter on which the handler raised an exception. Batches without a
        bad record, and batches planned before ``since_ms``, have no entry. The batch with the
        newest bad record is first. Errors have no trace. At most the newest 1000 bad records are
        read.
        """
        bad = self._database.rows(
            _SQL["bad"], gate=gate_name, since_ms=since_ms, rejected=REJECTED, bad_value=BAD_VALUE
        )
        reports: dict[str, ErrorReport] = {}
        for row in bad:
            reports.setdefault(row.batch_key, ErrorReport(row.error_class, row.error_message, ""))
        return reports

    def get(self, batch_key: str) -> BatchRecord | None:
        """Return the batch with this key; None if the ledger does not have it."""
        return next(iter(self._select("batch", batch=batch_key)), None)

    def ranges(self, batch_key: str) -> tuple[PlannedRange, ...]:
        """Return the ranges of a batch, sorted by topic, partition and offset.

        The ranges of a batch never change.
        """
        return self._database.read(lambda connection: ranges_of(connection, batch_key))

    def servers(self, batch_key: str) -> str | None:
        """Return the Kafka brokers with which a batch was planned; None for an unknown batch."""
        servers: str | None = self._database.scalar(_SQL["servers"], batch=batch_key)
        return servers

    def is_over(self, key: str) -> bool:
        """Return whether the batch or part with this key is finished, and never runs again.

        The call waits for a pending commit, which locks the row. So the result is also correct
        after a commit whose answer was lost, for example while the server waited for a standby.
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
        """Return the newest ``in_progress`` batch of a gate; None if there is none."""
        newest = self._select("newest", gate=gate_name, status=Status.IN_PROGRESS, limit=1)
        return next(iter(newest), None)

    def live(self, gate_name: str, number: int | None = None) -> BatchRecord | None:
        """Return a gate's newest batch; None if there is none.

        If ``number`` is set, only batches to which Spark gave this number are searched.
        """
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

        Only batches with one of ``statuses`` are returned (default: every status). Their created
        time is at least ``since_ms`` and below ``until_ms``.
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
        """Return the created and end times (ms) of a gate's newest batches, newest first.

        The end time of a running batch is None.
        """
        rows = self._database.rows(_SQL["spans"], gate=gate_name, limit=limit)
        return [(row.created_time_ms, row.end_time_ms) for row in rows]

    def failed(
        self, gate_name: str | None = None, limit: int = 100, *, waits_ms: Sequence[int] = ()
    ) -> tuple[BatchRecord, ...]:
        """Return the claimable batches of one gate or of all gates, oldest first.

        A backfill can claim a ``failed`` batch, and a ``backfilling`` batch with an expired lease.
        A batch with ``n`` failed backfills is left out until ``waits_ms[n]`` have passed since its
        last run. The last item also applies to a higher ``n``. An empty list means no wait.
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
        """Return the unresolved batches of one gate or of all gates, oldest first.

        Such a batch is ``failed``, ``backfilling`` or ``dead``, and was not dropped. Only batches
        created at ``since_ms`` or later and before ``until_ms`` are returned. ``error_class`` is
        the class of the exception, with or without its module.
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
        """Return at most ``limit`` batches whose keys begin with ``prefix``, sorted by key."""
        above = prefix + "g"  # "g" sorts behind all hexadecimal digits.
        return self._select("with_prefix", prefix=prefix, above=above, limit=limit)

    def _select(self, name: str, **values: Any) -> tuple[BatchRecord, ...]:
        rows = self._database.rows(_SQL[name], **values)
        return tuple(batch_from(row._mapping) for row in rows)


def ranges_of(connection: Connection, batch_key: str) -> tuple[PlannedRange, ...]:
    """Return the ranges of a batch, sorted by topic, partition and offset.

    LedgerError is raised if two ranges share an offset, so that a record would be processed twice.
    """
    planned = tuple(
        range_from(row) for row in execute(connection, _SQL["ranges"], {"batch": batch_key})
    )
    if (shared := shared_offsets(planned_range.offsets for planned_range in planned)) is not None:
        raise LedgerError(
            f"Two ranges of batch {batch_key} in the ledger share the offsets {shared}, so the"
            " batch is not run; restore the ledger from a backup."
        )
    return planned


def _reads_all(cover: PlannedBatch, batch: BatchRecord, planned: Sequence[PlannedRange]) -> bool:
    """Return whether ``cover`` contains the unprocessed offsets of a batch.

    OptionError is raised if ``cover`` contains only some of these offsets.
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
        f"The new checkpoint of gate {batch.gate!r} begins within batch {batch.batch_key}. Offsets"
        f" of this batch wait for a backfill ({waits}), and would be processed twice; set"
        " startingOffsets before or after these offsets, and start with another new checkpoint."
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
