"""Batches: what they read, their transitions, and how they stand."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Connection, Executable, select

from headrace.errors import GateInUseError, LedgerError
from headrace.ledger import batch_rows, checkpoints, transitions
from headrace.ledger.batch_rows import (
    Values,
    batch_from,
    control_row,
    error_values,
    failure_rows,
    range_from,
)
from headrace.ledger.clock import LEASE_END
from headrace.ledger.database import changed_rows, insert_rows
from headrace.ledger.gates import GATES, query_behind
from headrace.ledger.records import (
    Attached,
    BatchRecord,
    ErrorReport,
    PlannedBatch,
    PlannedRange,
    Unresolved,
    storable,
)
from headrace.ledger.store import Store
from headrace.ledger.tables import control, failure
from headrace.ledger.transitions import Kind, Status

OWNER_GONE: Final = ErrorReport(
    "OwnerGone",
    "The process that ran this batch is gone: it ended, or stopped renewing its lease, before it "
    "reported the outcome.",
    "",
)
"""Why a batch failed that was abandoned."""

NOT_RUN_AGAIN: Final = ErrorReport(
    "NotRunAgain",
    "The query was stopped while this batch ran, and has been started again without it, as with "
    "another checkpoint; a backfill runs it.",
    "",
)
"""Why a batch failed that was interrupted by a stop and not run again."""

_ABOVE_ALL_DIGITS: Final = "g"


class BatchStore(Store):
    """The batches of a ledger, and the children of those that were split."""

    def begin(self, batch: PlannedBatch, *, query: str | None = None) -> BatchRecord:
        """Write down what a batch is about to read, before any of it is read.

        A batch that is not in the ledger yet becomes ``in_progress`` (transition A), its row and
        those of its ranges together; its created time is above that of the gate's batches before,
        though the clock be set back. One that is there is being run again, by an engine that
        repeats its last planned batch after a crash: ``in_progress`` or ``failed`` is taken up with
        one attempt more (B, C), and what the plan said the first time is kept. Any other status
        stays: the batch was finished before the crash (``success``), or is a backfill's.

        Args:
            batch: What it reads.
            query: Who must own the gate, if the caller has claimed it: see `claim_gate`.

        Returns:
            The batch's row as it is now. Only if it is ``in_progress`` is the caller to run it.

        Raises:
            GateInUseError: Another query stands behind the gate; nothing is changed.
            LedgerError: The gate is not declared, there is nothing to read, or the ledger's row of
                this batch has other ranges.
        """
        if batch.records == 0:
            raise LedgerError(f"A batch of gate {batch.gate!r} has no offsets to read.")
        schedule_id, call_id = batch.schedule_id, transitions.new_call_id()
        statement = self._database.insert(control).on_conflict_do_nothing()

        def begin(connection: Connection) -> BatchRecord:
            # First, for it makes whoever begins a batch of this gate wait for the one before.
            count = {
                "of": batch.gate,
                "batch": schedule_id,
                "call": call_id,
                "query": query,
                "run": batch.checkpoint_id,
            }
            if changed_rows(connection, batch_rows.COUNT_BEGIN, count) == 0 and query is not None:
                _refuse_but(connection, batch.gate, query)
            newest_ms = connection.scalar(batch_rows.NEWEST_CREATED_MS, {"gate": batch.gate})
            row = control_row(batch, schedule_id, max(self._clock(), (newest_ms or 0) + 1), call_id)
            inserted = self._insert_under(batch.gate, connection, statement, row)
            if not inserted:
                return self._begin_again(connection, batch, schedule_id, call_id)
            insert_rows(connection, failure, failure_rows(batch, schedule_id))
            checkpoints.record_plan(connection, batch, schedule_id)
            checkpoints.advance_position(connection, batch)
            return batch_from(row)

        return self._database.write(begin)

    def _begin_again(
        self, connection: Connection, batch: PlannedBatch, schedule_id: str, call_id: str
    ) -> BatchRecord:
        stored = {planned.offsets for planned in _ranges_of(connection, schedule_id)}
        if stored != {planned.offsets for planned in batch.ranges if planned.offsets.count}:
            raise LedgerError(
                f"The ledger {self._database.name} has other ranges for batch {schedule_id} of "
                f"gate {batch.gate!r} than the batch itself, so its rows were changed or damaged; "
                "restore it from a copy."
            )
        connection.execute(transitions.BEGIN_AGAIN, {"batch": schedule_id, "call": call_id})
        checkpoints.begin_again(connection, batch, schedule_id)
        return _batch(connection, schedule_id)

    def attach(
        self,
        schedule_id: str,
        query_batch_id: int,
        *,
        start_time_ms: int | None = None,
        owner: str | None = None,
        lease_ms: int = 0,
        gone: str | None = None,
    ) -> Attached | None:
        """Note that the engine processes a batch under this number, and who it belongs to.

        The run of the gate's handler that follows is counted with it. That one is to be the gate's
        next run: a run that waits for another one first is counted by `next_sequence`.

        Args:
            schedule_id: The batch.
            query_batch_id: The engine's own number for it.
            start_time_ms: Since when, if not since now.
            owner: Names one run of the query. Another owner whose lease has run out is replaced.
            lease_ms: How long the batch is the owner's, unless it is renewed.
            gone: An owner that is known to be dead, who is replaced at once.

        Returns:
            What its owner needs to run it. None if the batch is not ``in_progress``, or another
            owner's; nothing is changed then.
        """
        values = {
            "batch": schedule_id,
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
            batch, key = batch_from(row), {"schedule_id": schedule_id}
            was_split = batch.attempts > 1 and connection.execute(batch_rows.CHILDREN, key).first()
            return Attached(batch, _ranges_of(connection, schedule_id), bool(was_split), sequence)

        return self._database.write(attach)

    def retry(self, schedule_id: str, owner: str, lease_ms: int) -> bool:
        """Count one attempt more of a batch that its owner runs again in place (transition B).

        Returns:
            Whether the batch is ``in_progress`` and the owner's; if not, nothing is changed.
        """
        values = {"batch": schedule_id, "by": owner, "call": transitions.new_call_id()}
        return self._lease(transitions.RETRY, values, lease_ms)

    def renew(self, schedule_id: str, owner: str, lease_ms: int) -> bool:
        """Keep a batch for as long again, from now on, while it is worked on.

        Returns:
            Whether it is still the owner's, be the lease run out or not; if not, nothing is
            changed, and whatever the owner makes of the batch will not be counted.
        """
        return self._lease(transitions.RENEW, {"batch": schedule_id, "by": owner}, lease_ms)

    def succeed(
        self, schedule_id: str, *, records: int | None = None, owner: str | None = None
    ) -> bool:
        """Move a batch from ``in_progress`` to ``success`` (transition D).

        Args:
            schedule_id: The batch.
            records: How many it had, if the caller knows; a rate sample says it too.
            owner: Who must own it, if the caller attached as an owner.

        Returns:
            Whether it was ``in_progress``, and that owner's; if not, nothing is changed.
        """
        return (
            self._database.change(transitions.SUCCEED, self._ended(schedule_id, owner, records))
            == 1
        )

    def fail(
        self,
        schedule_id: str,
        error: BaseException | ErrorReport,
        *,
        owner: str | None = None,
        outcome_unknown: bool = False,
    ) -> bool:
        """Move a batch from ``in_progress`` to ``failed`` (transition E).

        Args:
            schedule_id: The batch.
            error: Why: the exception, or what the engine reported.
            owner: Who must own it, if the caller attached as an owner.
            outcome_unknown: Whether it may be in its sink though it failed: its run did not
                raise by itself, or nobody knows.

        Returns:
            Whether it was ``in_progress``, and that owner's; if not, nothing is changed.
        """
        values = self._failed(schedule_id, owner, error) | {"unknown": outcome_unknown}
        return self._database.change(transitions.FAIL, values) == 1

    def keep_error(self, schedule_id: str, error: BaseException | ErrorReport) -> bool:
        """Keep with a batch that is ``success`` what was raised after it was committed.

        Returns:
            Whether it is ``success``; if not, nothing is changed.
        """
        values = {"batch": schedule_id, **error_values(ErrorReport.of(error))}
        return self._database.change(batch_rows.KEEP_ERROR, values) == 1

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lend a connection to the ledger's database, within a transaction, without a transition.

        Raises:
            LedgerError: The database failed.
        """
        with self._database.lend(lambda _connection: None) as connection:
            yield connection

    @contextmanager
    def transaction(
        self, schedule_id: str, owner: str, *, records: int | None = None
    ) -> Iterator[Connection]:
        """Lend a connection to the ledger's database; what it writes commits with ``success``.

        At its end the batch moves from ``in_progress`` (transition D) or ``backfilling`` (G), in
        the same transaction: either both are durable, or neither has happened. What would commit,
        roll back or close the connection before is refused; savepoints (``begin_nested``) are not.
        A SQLite file has one writer at a time: until the end every other one waits, and methods of
        this ledger that write are refused within it in the same thread.

        Raises:
            UnknownCommitError: The answer to the commit was lost; `get` knows.
            LedgerError: The batch is not the owner's any more, the transaction was ended within, or
                the database failed. All is undone then, as it is when the caller raises; that
                exception is passed on as it is.
        """

        def end(connection: Connection) -> None:
            values = self._ended(schedule_id, owner, records)
            if not any(
                changed_rows(connection, transition, values)
                for transition in (transitions.SUCCEED, transitions.BACKFILLED)
            ):
                raise LedgerError(
                    f"Batch {schedule_id} in the ledger {self._database.name} does not belong to "
                    f"{owner!r} any more, so what was written for it is undone; whoever owns it "
                    "now runs it."
                )

        with self._database.lend(end) as connection:
            yield connection

    def split(
        self,
        schedule_id: str,
        children: Sequence[PlannedBatch],
        owner: str,
        lease_ms: int,
        *,
        gone: Collection[str] = (),
    ) -> tuple[BatchRecord, ...]:
        """Write the children of a batch down, before any of them is read.

        A child that is not in the ledger yet becomes ``in_progress`` (transition A), created right
        after its parent; of the kind ``backfill`` where that is ``backfilling``. One that is there
        was split off before a crash: ``in_progress`` or ``failed`` is taken up again (B, C) but
        for another owner's; any other status stays. The parent's lease is renewed; what becomes of
        its row is up to the caller.

        Args:
            schedule_id: The batch, or child, to split.
            children: Together they read just what it reads.
            owner: Whose it is, and whose the children become.
            lease_ms: How long they are the owner's, unless they are renewed.
            gone: Owners that are known to be dead, who are replaced at once.

        Returns:
            The children's rows as they are now, in the order given. Those that are
            ``in_progress`` and the owner's are the caller's to run.

        Raises:
            LedgerError: The batch is not the owner's, or these are not its children.
        """
        splitter = {"batch": schedule_id, "by": owner, "call": transitions.new_call_id()}

        def split(connection: Connection) -> tuple[BatchRecord, ...]:
            leased = splitter | self._leased(lease_ms)
            if changed_rows(connection, transitions.RENEW, leased) == 0:
                raise LedgerError(
                    f"Batch {schedule_id} in the ledger {self._database.name} does not belong to "
                    f"{owner!r}, so it is not split; whoever owns it runs it."
                )
            parent = _batch(connection, schedule_id)
            _refuse_others(parent, children)
            for number, child in enumerate(children, start=1):
                created_ms = parent.created_time_ms + number
                row = control_row(child, child.schedule_id, created_ms, splitter["call"])
                row |= {
                    "kind": _kind_of_children(parent),
                    "owner": owner,
                    "lease_ms": leased["lease_ms"],
                    "parent": schedule_id,
                }
                self._begin_child(connection, child, row, gone)
            return tuple(_batch(connection, child.schedule_id) for child in children)

        return self._database.write(split)

    def _begin_child(
        self, connection: Connection, child: PlannedBatch, row: Values, gone: Collection[str]
    ) -> None:
        insert = self._database.insert(control).on_conflict_do_nothing()
        statement = insert.values(lease_until_ms=LEASE_END)
        del row["lease_until_ms"]
        if changed_rows(connection, statement, row):
            insert_rows(connection, failure, failure_rows(child, row["schedule_id"]))
            return
        values = {
            "batch": row["schedule_id"],
            "child_of": row["parent"],
            "by": row["owner"],
            "call": row["last_call"],
            "lease_ms": row["lease_ms"],
            "gone": list(gone),
        }
        connection.execute(transitions.BEGIN_CHILD_AGAIN, values)

    def claim(self, schedule_id: str, owner: str, lease_ms: int) -> BatchRecord | None:
        """Move a batch from ``failed`` to ``backfilling`` (transition F).

        One that is ``backfilling`` can be claimed too, once its owner's lease has run out (H, then
        F): that backfill was interrupted, has failed, and counts as an attempt. The error that it
        failed with before stays.

        Args:
            schedule_id: The batch.
            owner: Names one run of a backfill.
            lease_ms: How long the batch is the owner's, unless it is renewed.

        Returns:
            Its row as it is now, or None if it cannot be claimed; nothing is changed then.
        """
        claimer = {"batch": schedule_id, "by": owner, "call": transitions.new_call_id()}

        def claim(connection: Connection) -> BatchRecord | None:
            if changed_rows(connection, transitions.CLAIM, claimer | self._leased(lease_ms)) == 0:
                return None
            return _batch(connection, schedule_id)

        return self._database.write(claim)

    def backfilled(self, schedule_id: str, owner: str, *, records: int | None = None) -> bool:
        """Move a batch from ``backfilling`` to ``success`` (transition G); its error is cleared.

        Returns:
            Whether it was the owner's; if not, nothing is changed.
        """
        values = self._ended(schedule_id, owner, records)
        return self._database.change(transitions.BACKFILLED, values) == 1

    def release(
        self,
        schedule_id: str,
        owner: str,
        error: BaseException | ErrorReport,
        *,
        max_backfills: int,
        outcome_unknown: bool = False,
    ) -> Status | None:
        """Move a batch from ``backfilling`` to ``failed`` (transition H), or at last ``dead`` (I).

        Args:
            schedule_id: The batch.
            owner: Whose it is.
            error: Why the backfill failed.
            max_backfills: The batch is dead when so many backfills of it have failed, this one
                counted; however often the live stream has begun it.
            outcome_unknown: Whether it may be in its sink though it failed: the run did not
                raise by itself.

        Returns:
            Its status now, or None if it was not the owner's; nothing is changed then.
        """
        values = self._failed(schedule_id, owner, error) | {"unknown": outcome_unknown}
        spared = {**values, "most_backfills": max_backfills}

        def release(connection: Connection) -> Status | None:
            if changed_rows(connection, transitions.RELEASE, spared):
                return Status.FAILED
            died = changed_rows(connection, transitions.RELEASE_AS_DEAD, values)
            return Status.DEAD if died else None

        return self._database.write(release)

    def mark_dead(self, schedule_id: str, owner: str, error: BaseException | ErrorReport) -> bool:
        """Move a batch from ``backfilling`` to ``dead`` (transition I), whatever its attempts.

        Returns:
            Whether it was the owner's; if not, nothing is changed.
        """
        values = self._failed(schedule_id, owner, error)
        return self._database.change(transitions.MARK_DEAD, values) == 1

    def drop(self, schedule_id: str, reason: str) -> bool:
        """Say that a dead batch need not be looked after any more, and why; it stays ``dead``.

        Returns:
            Whether it is dead, and was not dropped for another reason; if not, nothing is changed.
        """
        values = {"batch": schedule_id, "why": storable(reason)}
        return self._database.change(batch_rows.DROP, values) == 1

    def resolve_abandoned(
        self, gate_name: str, *, but: str | None, unowned_before_ms: int
    ) -> list[str]:
        """Move live batches and children that nobody runs any more to ``failed`` (transition E).

        These are ``in_progress``, and either their owner's lease has run out, or they never had an
        owner and are old. Those that a stop of the query interrupted, and its next start does not
        run, count as failed from now on.

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

    def get(self, schedule_id: str) -> BatchRecord | None:
        """One batch, if it is in the ledger."""
        return next(iter(self._select(batch_rows.BATCH, schedule_id=schedule_id)), None)

    def ranges(self, schedule_id: str) -> tuple[PlannedRange, ...]:
        """What a batch reads, by topic, partition and offset; it never changes."""
        return self._database.read(lambda connection: _ranges_of(connection, schedule_id))

    def servers(self, schedule_id: str) -> str | None:
        """The brokers on which a batch was planned; None where it is not in the ledger."""
        servers: str | None = self._database.scalar(batch_rows.SERVERS, schedule_id=schedule_id)
        return servers

    def children(self, schedule_id: str) -> tuple[BatchRecord, ...]:
        """What a batch was split into, in the order of the split; nothing where it never was."""
        return self._select(batch_rows.CHILDREN, schedule_id=schedule_id)

    def open_batch(self, gate_name: str) -> BatchRecord | None:
        """The newest batch of the gate's live stream that is ``in_progress``, if there is one."""
        return next(iter(self._select(batch_rows.OPEN_BATCH, gate=gate_name)), None)

    def newest(
        self,
        gate_name: str | None = None,
        limit: int = 100,
        *,
        statuses: Collection[Status] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
        kind: Kind | None = None,
        children: bool = True,
    ) -> tuple[BatchRecord, ...]:
        """The last batches of one gate or of all, newest first.

        Args:
            gate_name: The gate, or None for all.
            limit: How many at most.
            statuses: Which ones; all of them where none is named.
            since_ms: Created at this time or later.
            until_ms: Created before this time.
            kind: What planned them.
            children: Whether the children of batches that were split are meant too.
        """
        query = select(control).order_by(control.c.created_time_ms.desc()).limit(limit)
        query = query.where(
            *batch_rows.created_within(control.c.created_time_ms, since_ms, until_ms)
        )
        if kind is not None:
            query = query.where(control.c.kind == kind)
        if not children:
            query = query.where(control.c.parent.is_(None))

        def newest(connection: Connection) -> list[BatchRecord]:
            names = [gate_name] if gate_name is not None else connection.scalars(GATES).all()
            queries = [query.where(control.c.gate == name) for name in names]
            if statuses:
                queries = [
                    each.where(control.c.status == s) for each in queries for s in set(statuses)
                ]
            if not queries:
                return []
            rows = connection.execute(batch_rows.together(queries))
            return [batch_from(row) for row in rows.mappings()]

        found = self._database.read(newest)
        return tuple(sorted(found, key=lambda batch: -batch.created_time_ms)[:limit])

    def failed(
        self, gate_name: str | None = None, limit: int = 100, *, waits_ms: Sequence[int] = ()
    ) -> tuple[BatchRecord, ...]:
        """What a backfill could claim now, earliest created first, of one gate or of all.

        These batches are ``failed``, or ``backfilling`` with a lease that has run out.

        Args:
            gate_name: The gate, or None for all.
            limit: How many at most.
            waits_ms: How long a batch is to wait after its last run: after 0, 1, 2 ... backfills of
                it that failed, and the last one after more. Those that still wait are not in it.
        """
        query = batch_rows.FAILED_BATCHES
        if waits_ms:
            query = query.where(batch_rows.has_waited(waits_ms, self._clock()))
        return self._select(query, gate=gate_name, limit=limit)

    def unresolved(
        self,
        gate_name: str | None = None,
        limit: int = 100,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        error_class: str | None = None,
    ) -> tuple[BatchRecord, ...]:
        """What failed and is unresolved, earliest created first, of one gate or of all.

        They are ``failed``, ``backfilling``, or ``dead`` as a whole; neither
        records that were kept as dead letters, nor what was dropped.

        Args:
            gate_name: The gate, or None for all.
            limit: How many at most.
            since_ms: Created at this time or later.
            until_ms: Created before this time.
            error_class: The class of the exception, with its module or without.
        """
        query = batch_rows.UNRESOLVED.limit(limit).where(
            *batch_rows.created_within(control.c.created_time_ms, since_ms, until_ms)
        )
        if error_class is not None:
            query = query.where(batch_rows.is_error(control.c.error_class, error_class))
        return self._select(query, gate=gate_name)

    def count_unresolved(self, gate_name: str) -> Unresolved:
        """How many of a gate's batches, children and records somebody may have to look after."""
        of_gate = {"gate": gate_name}

        def count(connection: Connection) -> Unresolved:
            rows = connection.execute(batch_rows.UNRESOLVED_COUNTS, of_gate)
            counts: dict[str, int] = {row.status: row.number for row in rows}
            return Unresolved(
                failed=counts.get(Status.FAILED, 0) + counts.get(Status.BACKFILLING, 0),
                dead=counts.get(Status.DEAD, 0),
                letters=connection.execute(batch_rows.WAITING_LETTERS, of_gate).scalar_one(),
            )

        return self._database.read(count)

    def _select(self, statement: Executable, **values: Any) -> tuple[BatchRecord, ...]:
        return tuple(batch_from(row._mapping) for row in self._database.rows(statement, **values))

    def _lease(self, statement: Executable, values: Values, lease_ms: int | None) -> bool:
        """Run a statement that begins a lease, from when it is run, however late that is."""

        def run(connection: Connection) -> int:
            return changed_rows(connection, statement, values | self._leased(lease_ms))

        return self._database.alone(run) == 1

    def with_prefix(self, prefix: str, limit: int = 2) -> tuple[BatchRecord, ...]:
        """Batches and children whose key begins with these hexadecimal digits, by key."""
        above = prefix + _ABOVE_ALL_DIGITS
        return self._select(batch_rows.BY_PREFIX, prefix=prefix, above=above, limit=limit)


def _ranges_of(connection: Connection, schedule_id: str) -> tuple[PlannedRange, ...]:
    rows = connection.execute(batch_rows.RANGES, {"schedule_id": schedule_id})
    return tuple(map(range_from, rows))


def _refuse_but(connection: Connection, gate_name: str, query: str) -> None:
    """Raise unless this query stands behind the gate; what was done is undone then."""
    found = query_behind(connection, gate_name)
    if found is None or found.owner != query:
        raise GateInUseError(
            f"The gate {gate_name!r} was taken over by another query"
            f"{f' ({found.described})' if found is not None else ''}, for this one gave no sign of"
            " life until its lease had run out; start this query again once that one has ended."
        )


def _batch(connection: Connection, schedule_id: str) -> BatchRecord:
    row = connection.execute(batch_rows.BATCH, {"schedule_id": schedule_id})
    return batch_from(row.mappings().one())


def _kind_of_children(parent: BatchRecord) -> Kind:
    return Kind.BACKFILL if parent.status is Status.BACKFILLING else parent.kind


def _refuse_others(parent: BatchRecord, children: Sequence[PlannedBatch]) -> None:
    own = all(
        (child.gate, child.checkpoint_id) == (parent.gate, parent.checkpoint_id)
        for child in children
    )
    counts = [child.records for child in children]
    if not (own and len(children) > 1 and all(counts) and sum(counts) == parent.planned_records):
        raise LedgerError(
            f"Batch {parent.schedule_id} of gate {parent.gate!r} has {parent.planned_records} "
            f"offsets and cannot be split into children of {counts}; two or more children of the "
            "same gate and run share its offsets, and none is empty."
        )
