"""The ledger: the one place where planner, driver, command line and other applications meet."""

import math
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Executable, insert
from sqlalchemy.exc import IntegrityError

from headgate.control.ranges import OffsetRange
from headgate.errors import LedgerError
from headgate.ledger import history, schema, statements
from headgate.ledger.bulk import insert_rows
from headgate.ledger.engine import Database, changed_rows
from headgate.ledger.records import (
    BatchRecord,
    ErrorReport,
    GateRecord,
    Loss,
    PlannedBatch,
    PlannedRange,
    Pruned,
    RateSample,
)
from headgate.ledger.rows import (
    batch_from,
    control_row,
    error_values,
    failure_rows,
    loss_from,
    loss_row,
    range_from,
    rate_row,
)
from headgate.ledger.tables import control, failure, gate, lost, rate

Clock = Callable[[], int]
"""Answers the time, in ms since the epoch."""


def wall_clock_ms() -> int:
    """The machine's time, in ms since the epoch."""
    return time.time_ns() // 1_000_000


class Ledger:
    """Gates and their rates, batches and their ranges, losses: in a database, shared by processes.

    Every method is one transaction (``prune`` is several): durable when it returns, without effect
    when it raises. Each raises :class:`LedgerError` when the database cannot be read or written,
    whatever the cause. They can be called from any thread, and from several processes at once.

    The status of a batch moves only along the arrows of :mod:`headgate.ledger.status`, each by
    compare-and-set: of two callers that try the same move, one is told True.

    ::

        with Ledger.open("sqlite:///headgate.db") as ledger:
            ledger.declare_gate("orders", interval_ms=1_000, source="kafka", estimator="pid")
            batch = ledger.begin(planned)              # before any of its data is read
            ledger.succeed(batch.schedule_id)          # or: ledger.fail(batch.schedule_id, error)
            ledger.publish_rate(sample)                # what the estimator made of it
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @classmethod
    def open(cls, url: str, *, create: bool = True, clock: Clock = wall_clock_ms) -> Self:
        """Open a ledger; several processes may do so at the same time, the first time too.

        Args:
            url: ``sqlite:///file.db`` (its folder must exist) or ``postgresql://...``.
            create: Make the ledger if there is none, and bring an older one up to date. If False,
                nothing is ever written, and the right to read is enough.
            clock: Where the times of batches come from.

        Raises:
            LedgerError: The URL is not a ledger's, the database cannot be reached or used, or, with
                ``create=False``, holds no ledger.
            SchemaError: The ledger is a newer Headgate's, or its tables are somebody else's; with
                ``create=False``, also an older Headgate's.
        """
        database = Database(url, read_only=not create)
        try:
            if create:
                schema.prepare(database)
            else:
                schema.check(database)
        except BaseException:
            database.close()
            raise
        return cls(database, clock)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self._database.name!r})"

    # Gates and their rates

    def declare_gate(self, name: str, *, interval_ms: int, source: str, estimator: str) -> None:
        """Make a gate known, or describe it anew; its rate and its history stay."""
        description = {"interval_ms": interval_ms, "source": source, "estimator": estimator}
        statement = self._database.insert(gate).on_conflict_do_update(
            index_elements=[gate.c.name], set_=description
        )
        self._database.change(statement, {"name": name, "created_ms": self._clock(), **description})

    def gates(self) -> tuple[GateRecord, ...]:
        """All gates, by name."""
        with self._database.reading() as connection:
            rows = connection.execute(statements.GATES)
            return tuple(GateRecord(**row._asdict()) for row in rows)

    def rate(self, gate_name: str) -> float | None:
        """The gate's current rate, in records per second; None while none has been learnt."""
        with self._database.reading() as connection:
            return connection.scalar(statements.CURRENT_RATE, {"gate": gate_name})

    def publish_rate(self, sample: RateSample) -> None:
        """Keep what the estimator made of a batch, and put its new rate in force.

        Where it gave none (``rate_per_s`` is None) the current rate stays in force. If the sample
        names a batch, that batch is told its number of records.

        Raises:
            LedgerError: The rate is not a positive number, or the gate is not declared.
        """
        new = sample.rate_per_s
        if new is not None and not (math.isfinite(new) and new > 0):
            raise LedgerError(
                f"The rate of gate {sample.gate!r} cannot be {new}; an estimator answers a "
                "positive number of records per second, or None."
            )
        with self._database.writing() as connection:
            self._insert_under(sample.gate, connection, insert(rate), rate_row(sample))
            if new is not None:
                in_force = {"gate": sample.gate, "new_rate": new, "new_time_ms": sample.time_ms}
                connection.execute(statements.SET_RATE, in_force)
            if sample.schedule_id is not None:
                count = {"batch": sample.schedule_id, "counted": sample.records}
                connection.execute(statements.SET_RECORDS, count)

    def rates(self, gate_name: str, limit: int = 100) -> tuple[RateSample, ...]:
        """A gate's last rate samples, newest first."""
        with self._database.reading() as connection:
            rows = connection.execute(statements.LAST_RATES, {"gate": gate_name, "limit": limit})
            return tuple(RateSample(**row._asdict()) for row in rows)

    # The moves of a batch

    def begin(self, batch: PlannedBatch) -> BatchRecord:
        """Write down what a batch is about to read, before any of it is read.

        A batch that is not in the ledger yet becomes ``in_progress`` (arrow A), its row and those
        of its ranges together; its created time is above that of the gate's batches before it,
        though the clock be set back. One that is there is being run again, by an engine that
        repeats its last planned batch after a crash: ``in_progress`` or ``failed`` is taken up with
        one attempt more (B, C), and what the plan said the first time is kept. Any other status
        stays: the batch was finished before the crash (``success``), or is a backfill's.

        Returns:
            The batch's row as it is now. Only if it is ``in_progress`` is the caller to run it.

        Raises:
            LedgerError: The gate is not declared, there is nothing to read, or the ledger's row of
                this batch has other ranges.
        """
        if batch.records == 0:
            raise LedgerError(f"A batch of gate {batch.gate!r} has no offsets to read.")
        schedule_id = batch.schedule_id
        statement = self._database.insert(control).on_conflict_do_nothing()
        with self._database.writing() as connection:
            newest_ms = connection.scalar(statements.NEWEST_CREATED_MS, {"gate": batch.gate})
            row = control_row(batch, schedule_id, max(self._clock(), (newest_ms or 0) + 1))
            if self._insert_under(batch.gate, connection, statement, row) == 0:
                return self._begin_again(connection, batch, schedule_id)
            insert_rows(connection, failure, failure_rows(batch, schedule_id))
        return batch_from(row)

    def _begin_again(
        self, connection: Connection, batch: PlannedBatch, schedule_id: str
    ) -> BatchRecord:
        rows = connection.execute(statements.RANGES, {"schedule_id": schedule_id})
        stored = {planned.offsets for planned in map(range_from, rows)}
        if stored != {planned.offsets for planned in batch.ranges if planned.offsets.count}:
            raise LedgerError(
                f"The ledger {self._database.name} has other ranges for batch {schedule_id} of "
                f"gate {batch.gate!r} than the batch itself, so its rows were changed or damaged; "
                "restore it from a copy."
            )
        connection.execute(statements.BEGIN_AGAIN, {"batch": schedule_id})
        row = connection.execute(statements.BATCH, {"schedule_id": schedule_id})
        return batch_from(row.mappings().one())

    def attach(
        self, schedule_id: str, query_batch_id: int, *, start_time_ms: int | None = None
    ) -> bool:
        """Note that the engine processes a batch under this number, since now or ``start_time_ms``.

        Returns:
            Whether the batch is ``in_progress``; if not, nothing is changed.
        """
        values = {
            "batch": schedule_id,
            "number": query_batch_id,
            "started_ms": self._clock() if start_time_ms is None else start_time_ms,
        }
        return self._database.change(statements.ATTACH, values) == 1

    def succeed(self, schedule_id: str, *, records: int | None = None) -> bool:
        """Move a batch from ``in_progress`` to ``success`` (arrow D).

        Args:
            schedule_id: The batch.
            records: How many it had, if the caller knows; a rate sample tells it too.

        Returns:
            Whether it was ``in_progress``; if not, nothing is changed.
        """
        values = {"batch": schedule_id, "ended_ms": self._clock(), "counted": records}
        return self._database.change(statements.SUCCEED, values) == 1

    def fail(self, schedule_id: str, error: BaseException | ErrorReport) -> bool:
        """Move a batch from ``in_progress`` to ``failed`` (arrow E).

        Args:
            schedule_id: The batch.
            error: Why: the exception, or what the engine told of one.

        Returns:
            Whether it was ``in_progress``; if not, nothing is changed.
        """
        report = error if isinstance(error, ErrorReport) else ErrorReport.of(error)
        values = {"batch": schedule_id, "ended_ms": self._clock(), **error_values(report)}
        return self._database.change(statements.FAIL, values) == 1

    # Batches as they stand

    def batch(self, schedule_id: str) -> BatchRecord | None:
        """One batch, if it is in the ledger."""
        return next(iter(self._batches(statements.BATCH, schedule_id=schedule_id)), None)

    def ranges(self, schedule_id: str) -> tuple[PlannedRange, ...]:
        """What a batch reads, by topic, partition and offset; it never changes."""
        with self._database.reading() as connection:
            rows = connection.execute(statements.RANGES, {"schedule_id": schedule_id})
            return tuple(map(range_from, rows))

    def open_batch(self, gate_name: str) -> BatchRecord | None:
        """The newest batch of the gate's live stream that is ``in_progress``, if there is one."""
        return next(iter(self._batches(statements.OPEN_BATCH, gate=gate_name)), None)

    def last_batch(self, gate_name: str) -> BatchRecord | None:
        """A gate's newest batch, whatever its status."""
        return next(iter(self.batches(gate_name, limit=1)), None)

    def batches(self, gate_name: str, limit: int = 100) -> tuple[BatchRecord, ...]:
        """A gate's last batches, newest first, whatever their status."""
        return self._batches(statements.LAST_BATCHES, gate=gate_name, limit=limit)

    def _batches(self, statement: Executable, **values: Any) -> tuple[BatchRecord, ...]:
        with self._database.reading() as connection:
            return tuple(map(batch_from, connection.execute(statement, values).mappings()))

    # Losses and history

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
        return history.prune(self._database, before_ms)

    def _insert_under(
        self,
        gate_name: str,
        connection: Connection,
        statement: Executable,
        values: dict[str, Any] | list[dict[str, Any]],
    ) -> int:
        """Insert rows that belong to a gate; how many."""
        try:
            return changed_rows(connection, statement, values)
        except IntegrityError as error:
            # The gate is all that these tables refer to.
            raise LedgerError(
                f"Gate {gate_name!r} is not declared in the ledger {self._database.name}; "
                "declare it first."
            ) from error
