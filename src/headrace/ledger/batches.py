"""The batches of the live stream: their moves, and how batches stand."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, select

from headrace.errors import GateInUseError, LedgerError
from headrace.ledger import checkpoints, moves, retention, statements
from headrace.ledger.base import Base
from headrace.ledger.bulk import insert_rows
from headrace.ledger.claims import query_behind
from headrace.ledger.engine import changed_rows
from headrace.ledger.records import Attached, BatchRecord, ErrorReport, PlannedBatch, PlannedRange
from headrace.ledger.rows import batch_from, control_row, error_values, failure_rows, range_from
from headrace.ledger.status import Kind, Status
from headrace.ledger.tables import control, failure


class Batches(Base):
    """What the live stream reads, and what became of it."""

    def begin(self, batch: PlannedBatch, *, query: str | None = None) -> BatchRecord:
        """Write down what a batch is about to read, before any of it is read.

        A batch that is not in the ledger yet becomes ``in_progress`` (arrow A), its row and those
        of its ranges together; its created time is above that of the gate's batches before it,
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
        schedule_id, move = batch.schedule_id, moves.new_move()
        statement = self._database.insert(control).on_conflict_do_nothing()

        def begin(connection: Connection) -> BatchRecord:
            # First, for it makes whoever begins a batch of this gate wait for the one before.
            count = {
                "of": batch.gate,
                "batch": schedule_id,
                "move": move,
                "query": query,
                "run": batch.run_id,
            }
            if changed_rows(connection, statements.COUNT_BEGIN, count) == 0 and query is not None:
                _refuse_but(connection, batch.gate, query)
            newest_ms = connection.scalar(statements.NEWEST_CREATED_MS, {"gate": batch.gate})
            row = control_row(batch, schedule_id, max(self._clock(), (newest_ms or 0) + 1), move)
            inserted = self._insert_under(batch.gate, connection, statement, row)
            if not inserted:
                return self._begin_again(connection, batch, schedule_id, move)
            insert_rows(connection, failure, failure_rows(batch, schedule_id))
            checkpoints.plan_on(connection, batch, schedule_id)
            retention.move_on(connection, batch)
            return batch_from(row)

        return self._database.write(begin)

    def _begin_again(
        self, connection: Connection, batch: PlannedBatch, schedule_id: str, move: str
    ) -> BatchRecord:
        stored = {planned.offsets for planned in _ranges(connection, schedule_id)}
        if stored != {planned.offsets for planned in batch.ranges if planned.offsets.count}:
            raise LedgerError(
                f"The ledger {self._database.name} has other ranges for batch {schedule_id} of "
                f"gate {batch.gate!r} than the batch itself, so its rows were changed or damaged; "
                "restore it from a copy."
            )
        connection.execute(moves.BEGIN_AGAIN, {"batch": schedule_id, "move": move})
        checkpoints.begin_again(connection, batch, schedule_id)
        row = connection.execute(statements.BATCH, {"schedule_id": schedule_id})
        return batch_from(row.mappings().one())

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
            sequence = connection.scalar(statements.NEXT_SEQUENCE_OF, leased)
            if sequence is None:
                return None
            row = connection.execute(statements.ATTACH, leased).mappings().one_or_none()
            if row is None:  # It was moved just now; of the numbers, one is left out.
                return None
            batch, key = batch_from(row), {"schedule_id": schedule_id}
            was_split = batch.attempts > 1 and connection.execute(statements.PARTS, key).first()
            return Attached(batch, _ranges(connection, schedule_id), bool(was_split), sequence)

        return self._database.write(attach)

    def retry(self, schedule_id: str, owner: str, lease_ms: int) -> bool:
        """Count one attempt more of a batch that its owner runs once more in place (arrow B).

        Returns:
            Whether the batch is ``in_progress`` and the owner's; if not, nothing is changed.
        """
        values = {"batch": schedule_id, "by": owner, "move": moves.new_move()}
        return self._lease(moves.RETRY, values, lease_ms)

    def renew(self, schedule_id: str, owner: str, lease_ms: int) -> bool:
        """Keep a batch for as long again, from now on, while it is worked on.

        Returns:
            Whether it is still the owner's, be the lease run out or not; if not, nothing is
            changed, and whatever the owner makes of the batch will not be counted.
        """
        return self._lease(moves.RENEW, {"batch": schedule_id, "by": owner}, lease_ms)

    def succeed(
        self, schedule_id: str, *, records: int | None = None, owner: str | None = None
    ) -> bool:
        """Move a batch from ``in_progress`` to ``success`` (arrow D).

        Args:
            schedule_id: The batch.
            records: How many it had, if the caller knows; a rate sample tells it too.
            owner: Who must own it, if the caller attached as an owner.

        Returns:
            Whether it was ``in_progress``, and that owner's; if not, nothing is changed.
        """
        return self._database.change(moves.SUCCEED, self._ended(schedule_id, owner, records)) == 1

    def fail(
        self,
        schedule_id: str,
        error: BaseException | ErrorReport,
        *,
        owner: str | None = None,
        cut_short: bool = False,
    ) -> bool:
        """Move a batch from ``in_progress`` to ``failed`` (arrow E).

        Args:
            schedule_id: The batch.
            error: Why: the exception, or what the engine told of one.
            owner: Who must own it, if the caller attached as an owner.
            cut_short: Whether it may be in its sink though it failed: its run did not raise by
                itself, or nobody knows.

        Returns:
            Whether it was ``in_progress``, and that owner's; if not, nothing is changed.
        """
        values = self._failed(schedule_id, owner, error) | {"cut": cut_short}
        return self._database.change(moves.FAIL, values) == 1

    def keep_error(self, schedule_id: str, error: BaseException | ErrorReport) -> bool:
        """Keep with a batch that is ``success`` what was raised after it was committed.

        Returns:
            Whether it is ``success``; if not, nothing is changed.
        """
        report = error if isinstance(error, ErrorReport) else ErrorReport.of(error)
        values = {"batch": schedule_id, **error_values(report)}
        return self._database.change(statements.KEEP_ERROR, values) == 1

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lend a connection to the ledger's database, within one transaction that moves no batch.

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

        At its end the batch moves from ``in_progress`` (arrow D) or ``backfilling`` (G), in the
        same transaction: either both are durable, or neither has happened. What would commit, roll
        back or close the connection before is refused; savepoints (``begin_nested``) are not. A
        SQLite file has one writer at a time: until the end every other one waits, and methods of
        this ledger that write are refused within it in the same thread.

        Raises:
            UnknownCommitError: The answer to the commit was lost; `batch` knows.
            LedgerError: The batch is not the owner's any more, the transaction was ended within, or
                the database failed. All is undone then, as it is when the caller raises; that
                exception is passed on as it is.
        """

        def end(connection: Connection) -> None:
            values = self._ended(schedule_id, owner, records)
            if not any(
                changed_rows(connection, move, values) for move in (moves.SUCCEED, moves.BACKFILLED)
            ):
                raise LedgerError(
                    f"Batch {schedule_id} in the ledger {self._database.name} does not belong to "
                    f"{owner!r} any more, so what was written for it is undone; whoever owns it "
                    "now runs it."
                )

        with self._database.lend(end) as connection:
            yield connection

    # Batches as they stand

    def batch(self, schedule_id: str) -> BatchRecord | None:
        """One batch, if it is in the ledger."""
        return next(iter(self._batches(statements.BATCH, schedule_id=schedule_id)), None)

    def ranges(self, schedule_id: str) -> tuple[PlannedRange, ...]:
        """What a batch reads, by topic, partition and offset; it never changes."""
        return self._database.read(lambda connection: _ranges(connection, schedule_id))

    def servers(self, schedule_id: str) -> str | None:
        """The brokers on which a batch was planned; None where it is not in the ledger."""
        return self._database.read(
            lambda connection: connection.scalar(statements.SERVERS, {"schedule_id": schedule_id})
        )

    def open_batch(self, gate_name: str) -> BatchRecord | None:
        """The newest batch of the gate's live stream that is ``in_progress``, if there is one."""
        return next(iter(self._batches(statements.OPEN_BATCH, gate=gate_name)), None)

    def batches(
        self,
        gate_name: str | None = None,
        limit: int = 100,
        *,
        statuses: Collection[Status] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
        kind: Kind | None = None,
        parts: bool = True,
    ) -> tuple[BatchRecord, ...]:
        """The last batches of one gate or of all, newest first.

        Args:
            gate_name: The gate, or None for all.
            limit: How many at most.
            statuses: Which ones; all of them where none is named.
            since_ms: Created at this time or later.
            until_ms: Created before this time.
            kind: What planned them.
            parts: Whether the parts of batches that were split are meant too.
        """
        query = select(control).order_by(control.c.created_time_ms.desc()).limit(limit)
        query = query.where(
            *statements.created_within(control.c.created_time_ms, since_ms, until_ms)
        )
        if kind is not None:
            query = query.where(control.c.kind == kind)
        if not parts:
            query = query.where(control.c.parent.is_(None))

        def newest(connection: Connection) -> list[BatchRecord]:
            names = (
                [gate_name] if gate_name is not None else connection.scalars(statements.GATES).all()
            )
            queries = [query.where(control.c.gate == name) for name in names]
            if statuses:
                queries = [
                    each.where(control.c.status == s) for each in queries for s in set(statuses)
                ]
            if not queries:
                return []
            rows = connection.execute(statements.together(queries))
            return [batch_from(row) for row in rows.mappings()]

        found = self._database.read(newest)
        return tuple(sorted(found, key=lambda batch: -batch.created_time_ms)[:limit])


def _ranges(connection: Connection, schedule_id: str) -> tuple[PlannedRange, ...]:
    rows = connection.execute(statements.RANGES, {"schedule_id": schedule_id})
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
