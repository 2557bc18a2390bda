"""Calls of a handler: with a batch of the stream, or with a batch or a part that is read again."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from pyspark.sql import DataFrame

from headrace.core.ranges import OffsetRange
from headrace.core.system import new_owner
from headrace.core.timing import LEASE_MS, LeaseRenewal
from headrace.errors import OptionError
from headrace.gate.control.life import Failure
from headrace.gate.control.parts import WHOLE, Progress, Ranges, above
from headrace.gate.control.schema_fit import (
    FIT_BATCHES,
    LOOKED_AT,
    FitCount,
    never_fitted,
    stopped_fitting,
)
from headrace.gate.execution.batch import Batch, Handler, HandlerTransaction, bind
from headrace.gate.execution.batch_reader import BatchReader
from headrace.gate.execution.health import HandlerHealth
from headrace.gate.execution.policy import STOP, OnFailure
from headrace.gate.execution.rejections import RecordReader, Rejections
from headrace.gate.execution.verdicts import failure_of, machinery_error
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, PlannedRange, part_key
from headrace.gate.ledger.transitions import Kind, Status
from headrace.gate.source.source_options import FAIL_ON_MISFIT
from headrace.gate.source.stream_offset import planned_ids

_LOG: Final = logging.getLogger("headrace.execution")


_LOOK_S: Final = 0.5

OWNER_POLL_S: Final = 0.5
"""Interval between checks whether the lease of another owner has expired (s)."""


class BatchLeases(LeaseRenewal):
    """Thread that renews an owner's leases of batches during the ``with`` block."""

    def __init__(self, ledger: Ledger, owner: str, lease_ms: int, *batches: str) -> None:
        self.owner: Final = owner

        def renew(batch_key: str) -> bool:
            return ledger.batches.renew(batch_key, owner, lease_ms)

        super().__init__("headrace-leases", renew, lease_ms, "batch {}", _LOG)
        self.keep(*batches)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop(wait=True)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Settings and services for the runs of a gate's batches.

    A stream, its backfill and the command ``headrace backfill`` each have a context of their own.

    Attributes:
        policy: Policy for an exception of the handler. Default: the query stops.
        reader: Reader that reads a batch again. None, the default, if the policy never skips a
            batch.
        records: Reader of rejected records. Default: ``reader``.
        owner: Unique name of this run of a program, with machine, process and start time. If the
            owner crashes, another process on the same machine sees this from the name, and need not
            wait until the lease has expired. Default: a new name.
        lease_ms: Time after which the lease of a batch expires without a renewal (ms). Default:
            30 000.
        turn: Context manager entered while the handler runs, so that two calls never overlap. It
            yields whether the handler was free, or None if unknown. Default: no lock, for a handler
            with one caller.
        health: Health of the handler, shared by all callers. Default: a new object.
        checks_fit: Whether a schema that fits no record ends the query. Default: True.
        stopped: Function that returns whether the query is being stopped. An exception is then no
            failure.
        sleep: Function that waits for a number of seconds.
        dice: Random generator for the order of test runs and for the length of waits for a sink.
    """

    ledger: Ledger
    handler: Handler
    policy: OnFailure = STOP
    reader: BatchReader | None = None
    records: RecordReader | None = None
    owner: str = field(default_factory=new_owner)
    lease_ms: int = LEASE_MS
    turn: AbstractContextManager[bool | None] = field(default_factory=nullcontext)
    health: HandlerHealth = field(default_factory=HandlerHealth)
    checks_fit: bool = True
    stopped: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep
    dice: random.Random = field(default_factory=random.SystemRandom)

    @property
    def record_reader(self) -> RecordReader | None:
        """Reader of rejected records; None if there is no reader."""
        return self.reader if self.records is None else self.records

    def leases(self, *batches: str) -> BatchLeases:
        """Return a context manager that renews the owner's leases of these batches."""
        return BatchLeases(self.ledger, self.owner, self.lease_ms, *batches)

    def failure(self, error: Exception, *, has_asked: bool = False) -> Failure:
        """Return the `Failure` that describes what a call's exception means for the batch."""
        goes_on = self.reader is not None and self.reader.passes_over_losses
        return failure_of(
            error, is_stopped=self.stopped(), has_asked=has_asked, passes_over_losses=goes_on
        )

    def wait(
        self, wait_s: float, until: Callable[[], bool] = lambda: False, look_s: float = _LOOK_S
    ) -> bool:
        """Wait for a time, until a condition holds, or until the query is being stopped.

        Args:
            wait_s: The longest wait (s).
            until: The condition, checked after each sleep.
            look_s: The length of a sleep (s). Default: 0.5.

        Returns:
            False if the query is being stopped, otherwise True.
        """
        while wait_s > 0 and not self.stopped():
            self.sleep(min(wait_s, look_s))
            wait_s -= look_s
            if until():
                break
        return not self.stopped()


@dataclass(frozen=True)
class BatchPart:
    """Batch or part of a batch with which a handler is called.

    Attributes:
        batch: The row of the batch in the ledger.
        planned: Ranges to read, as planned.
        path: Path of the part within the batch; "" for the whole batch.
        done: Progress of the batch to store after the part has passed. Default: None, the batch is
            then a success.
    """

    batch: BatchRecord
    planned: tuple[PlannedRange, ...]
    path: str = WHOLE
    done: Progress | None = None

    @property
    def key(self) -> str:
        """Key of the batch or part, for a sink."""
        return part_key(self.batch.batch_key, self.path)

    @property
    def parent_keys(self) -> tuple[str, ...]:
        """Keys of the enclosing parts and of the batch, the nearest first."""
        return tuple(part_key(self.batch.batch_key, path) for path in above(self.path))

    @property
    def is_single(self) -> bool:
        """Whether the batch or part has exactly one offset."""
        return sum(offsets.count for offsets in self.ranges) == 1

    @property
    def ranges(self) -> Ranges:
        """Ranges of offsets to read."""
        return tuple(planned.offsets for planned in self.planned)


class HandlerCalls:
    """Caller of a handler. A call returns the failure, or None if the batch is done."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._ledger = context.ledger
        self._asked: set[str] = set()
        """Keys of batches for which a handler call failed after it had asked its sink for the
        key."""

    def is_unknown(self, batch: BatchRecord) -> bool:
        """Whether an interrupted handler call may have written the whole batch to the sink.

        The answer is False once a later failed call has asked the sink for the batch's key: a sink
        that checks keys never stores both the batch and a part of it.
        """
        is_certain = batch.progress is not None or batch.batch_key in self._asked
        return batch.outcome_unknown and not is_certain

    def live(
        self, df: DataFrame, part: BatchPart, number: int, sequence: int | None = None
    ) -> Failure | None:
        """Call the handler with a batch of the stream.

        Return the failure; None if the batch is done.

        If ``sequence`` is None, the ledger assigns a number when the call begins. An unreachable
        ledger raises an exception before the handler is called. The handler's own exception is
        raised if it came after the commit and ends the query.
        """
        transaction = self._transaction(part, partial(self._check_fit, part.batch))
        with self._context.turn as was_free:
            counted = sequence if was_free else None
            described = self._describe(part, number, transaction, counted)
            try:
                with transaction.watched():
                    self._context.handler(df, described)
                self._context.health.note(df, is_single=part.is_single)
            except Exception as error:
                failure = self._failure(part, transaction, error)
                if not self._is_done(part, transaction, error):
                    self._context.health.note_failed(is_single=part.is_single)
                    return failure
                if not self._context.policy.skips or failure.ends_query:
                    raise
        self._report_rejected(part.batch, transaction)
        return None

    def again(self, part: BatchPart, reader: BatchReader) -> Failure | None:
        """Read a batch or a part again, and call the handler.

        Return the failure; None if the batch or part is done.
        """
        transaction = self._transaction(part)
        raised: list[Exception] = []

        def handle(df: DataFrame) -> None:
            with self._context.turn:
                described = self._describe(part, None, transaction)
                try:
                    with transaction.watched():
                        self._context.handler(df, described)
                except Exception as error:
                    raised.append(error)
                    if transaction.committed:
                        self._context.health.note(
                            df, is_single=part.is_single, is_dense=reader.is_dense
                        )
                    else:
                        self._context.health.note_failed(is_single=part.is_single)
                    raise
                self._context.health.note(df, is_single=part.is_single, is_dense=reader.is_dense)

        try:
            reader.run(part.planned, handle)
        except Exception as error:  # noqa: BLE001
            failure = self._failure(part, transaction, error)
            if not self._is_done(part, transaction, error):
                if not (raised or failure.ends_query or failure.is_blameless):
                    # The handler was not called, or it had returned.
                    unread = machinery_error("The batch could not be run", error)
                    return self._failure(part, transaction, unread)
                return failure
        self._report_rejected(part.batch, transaction)
        return None

    def _check_fit(self, batch: BatchRecord, rejections: Rejections) -> None:
        """Raise `OptionError` if the schema has never fitted a record, or has stopped fitting.

        In both cases the schema is at fault, and not the records.
        """
        unfit, letters = len(rejections.unfit), self._ledger.dead_letters
        newest = FitCount(batch.planned_records, unfit)
        if not self._context.checks_fit or 2 * unfit < newest.records:
            return
        before = letters.count_bad_values(batch.gate)
        if before is not None and not rejections.has_others():
            newest = FitCount(unfit, unfit)
        if never_fitted(newest, before):
            history = "has fitted none of its gate's records yet"
        elif self._context.policy.skips:
            return
        elif stopped_fitting([newest, *letters.fit_counts(batch.gate, LOOKED_AT - 1)]):
            history = f"does not fit most records of {FIT_BATCHES} batches in a row"
        else:
            return
        first = rejections.unfit[min(rejections.unfit)].message
        raise OptionError(
            f"The schema that gate {batch.gate!r} decodes with {history}: {unfit} of"
            f" {newest.records} in batch {batch.batch_key} do not fit, the first because {first};"
            " correct the schema or the producer and start the query again. To keep such records as"
            f" dead letters, set the option {FAIL_ON_MISFIT} to false."
        )

    def _transaction(
        self,
        part: BatchPart,
        check_fit: Callable[[Rejections], None] = lambda _rejections: None,
    ) -> HandlerTransaction:
        batch, batches = part.batch, self._ledger.batches
        key = batch.batch_key

        def planned() -> Sequence[PlannedRange]:
            return batches.ranges(key)

        def lose(missing: OffsetRange, why: str) -> None:
            why = f"it was rejected, and is gone before it was kept: {why}"
            _LOG.warning("Batch %s has lost the offsets %s (%s).", key, missing, why)
            self._ledger.history.record_losses(
                batch.gate,
                [missing],
                planned_ids(planned()),
                batch_key=key,
                reasons={missing: why},
            )

        reader = self._context.record_reader
        rejections = Rejections(part.key, part.ranges, reader, planned, lose, check_fit=check_fit)
        open_ = partial(
            batches.transaction,
            key,
            self._context.owner,
            rejected=rejections.read,
            progress=part.done,
        )
        return HandlerTransaction(part.key, open_, rejections)

    def _report_rejected(self, batch: BatchRecord, transaction: HandlerTransaction) -> None:
        letters = transaction.rejections.kept
        if not letters:
            return
        _LOG.warning(
            "The handler of batch %s of gate %r rejected records (%d), which are kept as dead"
            " letters; the first is %s-%d at %d: %r",
            batch.batch_key,
            batch.gate,
            len(letters),
            letters[0].topic,
            letters[0].partition,
            letters[0].offset,
            letters[0].error.message,
        )
        records = self._context.record_reader
        topic = None if records is None else records.dead_letter_topic(self._context.policy.topic)
        if topic is not None:
            for letter in letters:
                topic.send(letter)
            topic.flush()

    def _describe(
        self,
        part: BatchPart,
        number: int | None,
        transaction: HandlerTransaction,
        sequence: int | None = None,
    ) -> Batch:
        """Return the `Batch` argument for a call. The caller must hold the handler's lock."""
        if sequence is None:
            sequence = self._ledger.gates.next_sequence(part.batch.gate)
        # A backfill counts as an attempt only when it has failed.
        again = part.batch.status is Status.BACKFILLING
        batch = Batch(
            part.key,
            number,
            part.ranges,
            part.batch.attempts + again,
            Kind.BACKFILL if again else Kind.LIVE,
            sequence,
            part.parent_keys,
        )
        return bind(batch, transaction)

    def _is_done(self, part: BatchPart, transaction: HandlerTransaction, error: Exception) -> bool:
        """Return whether the error came after the batch's commit. If so, store the error."""
        is_committed = transaction.committed
        if transaction.is_in_doubt:
            is_committed = self._ledger.batches.is_over(part.key)
        if is_committed:
            self._ledger.batches.keep_error(part.batch.batch_key, error)
            _LOG.error(
                "Batch %s of gate %r is already committed by batch.transaction(), so it stays a"
                " success and is not run again; the later error of its handler is stored with it:"
                " %s",
                part.key,
                part.batch.gate,
                ErrorReport.of(error).line,
            )
        return is_committed

    def _failure(
        self, part: BatchPart, transaction: HandlerTransaction, error: Exception
    ) -> Failure:
        if transaction.asked:
            self._asked.add(part.key)
        return self._context.failure(error, has_asked=part.key in self._asked)
