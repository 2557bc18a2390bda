"""Runs of a handler, and what they share: over a stream's batch, or one that is read once more."""

import logging
import random
import threading
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
from headrace.decoding import new_run, reported_to
from headrace.errors import HandlerExitError, NotProcessedError, OptionError
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
from headrace.gate.execution.handler_errors import ends_query, machinery_error, not_the_records
from headrace.gate.execution.policy import STOP, OnFailure
from headrace.gate.execution.rejections import RecordReader, Rejections
from headrace.gate.ledger.error_report import ErrorReport, query_stopped
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, PlannedRange, part_key
from headrace.gate.ledger.transitions import Kind, Status
from headrace.gate.source.source_options import FAIL_ON_MISFIT
from headrace.gate.source.stream_offset import planned_ids

_LOG: Final = logging.getLogger("headrace.execution")


ALIKE: Final = 3
"""So many batches in a row fail with the same error of the program, and it is the handler's."""

_PROGRAM: Final = frozenset(
    {
        "AnalysisException",
        "AttributeError",
        "ImportError",
        "IndentationError",
        "ModuleNotFoundError",
        "NameError",
        "ParseException",
        "PySparkAttributeError",
        "PySparkTypeError",
        "SyntaxError",
        "TypeError",
        "UnboundLocalError",
    }
)
"""Names of exceptions that a program raises whatever its records; a record may lead to some."""


class HandlerHealth:
    """Shared by all who call one handler, live and in a backfill. Any thread may use it.

    Args:
        clock: Answers seconds since some moment.

    Attributes:
        passes: How many runs have succeeded with at least one record. A run is counted before the
            next one begins.
        failures: How many runs have failed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.passes = 0
        self.failures = 0
        self._clock = clock
        self._last_s = clock()
        self._changing = threading.Lock()
        self._asking = 0
        self._down: NotProcessedError | None = None
        self._has_worked = False
        self._alike: list[str] = []

    @property
    def down(self) -> NotProcessedError | None:
        """Why the sink seems to be down, since an isolation was stopped by it; None if not."""
        return self._down

    def stopped_by(self, last: Exception | ErrorReport) -> NotProcessedError:
        """Note that an isolation was stopped: batches that fail are not isolated now."""
        why = ErrorReport.of(last) if isinstance(last, Exception) else last
        self._down = NotProcessedError(
            f"{why.line} (nothing passes: records that have nothing to do with each other fail one"
            " after the other, so the sink seems to be down, or the handler to be wrong)",
            (why.error_class, why.message),
        )
        return self._down

    def is_wrong(self, error: Exception, of_parts: Exception | ErrorReport | None) -> bool:
        """Whether the handler itself is wrong, now that a batch of the stream has failed.

        It is where it has processed nothing yet, and fails with one and the same error of its
        program, such as an AttributeError, in several batches, or in parts of one that have no
        record in common.

        Args:
            error: What the batch failed with.
            of_parts: What such parts of it failed with; None where some have passed, or none was
                run.
        """
        why = ErrorReport.of(error)
        self._alike = [*(each for each in self._alike if each == why.line), why.line][-ALIKE:]
        if self._has_worked or why.error_class.rpartition(".")[2] not in _PROGRAM:
            return False
        same = of_parts is not None and ErrorReport.of(of_parts).line == why.line
        return len(self._alike) == ALIKE or same

    def note_failed(self) -> None:
        """Count a run that has failed; within the handler's turn."""
        self.failures += 1

    def note(self, df: DataFrame, *, is_dense: bool = False) -> None:
        """A run has succeeded; within the handler's turn.

        Args:
            df: What it processed.
            is_dense: Whether there is a record at each of its offsets. Then it is not looked for
                one.
        """
        self._down, self._last_s, self._has_worked = None, self._clock(), True
        if self._asking and (is_dense or _has_records(df)):
            self.passes += 1

    def is_idle(self, for_s: float) -> bool:
        """Whether nothing was processed for so long (s): then nothing is worth waiting for."""
        return self._clock() - self._last_s > for_s

    def __enter__(self) -> None:
        """Have passes counted; it may cost a small job each."""
        with self._changing:
            self._asking += 1

    def __exit__(self, *_raised: object) -> None:
        with self._changing:
            self._asking -= 1


def _has_records(df: DataFrame) -> bool:
    try:
        with reported_to(new_run()):  # what does not fit is reported already
            return not df.isEmpty()
    except Exception:  # noqa: BLE001  (then nothing is known, and nothing is counted)
        return False


_LOOK_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Context of a gate's runs. A stream, its backfill and a command each have one.

    Attributes:
        policy: What follows an exception in it. Default: the query stops.
        reader: Reads a batch once more. None, the default, where the policy skips nothing.
        records: Reads what the handler rejects. Default: the reader.
        owner: Names this run of a program; no other one has the name. Default: a new name.
        lease_ms: How long a batch is this owner's without a renewal (ms). Default: 30 000.
        turn: Entered while the handler runs, so that it is never called twice at a time; says
            whether it was free, None where nobody knows. Default: nobody else calls the handler.
        health: What is known of the handler; one for all who call it. Default: a new one.
        checks_fit: Whether a schema that fits nothing ends the query. Default: True.
        stopped: Whether the query is being stopped: what is raised then says nothing of a batch.
        sleep: Waits so many seconds.
        dice: Draws the orders of tests, and how long a sink is waited for.
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
        """Reader of what the handler rejects."""
        return self.reader if self.records is None else self.records

    def is_ended_by(self, error: Exception) -> bool:
        """Whether the query ends with this, and what was raised says nothing of the records."""
        return self.stopped() or isinstance(error, HandlerExitError)

    def ends(self, error: Exception) -> bool:
        """Whether the query ends with this, for that reason or because it cannot go on."""
        return self.is_ended_by(error) or ends_query(error) is not None

    def end_report(self, error: Exception) -> ErrorReport | None:
        """Report of a batch whose query ends with this, whatever its records; None otherwise."""
        if self.stopped():
            return query_stopped(error)
        return ErrorReport.of(error) if isinstance(error, HandlerExitError) else None

    def wait(
        self, wait_s: float, until: Callable[[], bool] = lambda: False, look_s: float = _LOOK_S
    ) -> bool:
        """Wait until the time is over, the query is being stopped, or a condition holds.

        Args:
            wait_s: The longest wait (s).
            until: The condition, asked after each sleep.
            look_s: How long a sleep is (s). Default: 0.5.

        Returns:
            Whether the query is not being stopped.
        """
        while wait_s > 0 and not self.stopped():
            self.sleep(min(wait_s, look_s))
            wait_s -= look_s
            if until():
                break
        return not self.stopped()


@dataclass(frozen=True)
class BatchPart:
    """What the handler is called with.

    Attributes:
        batch: The batch.
        planned: What is read: of the batch, or of this part.
        path: The part; "" for the whole.
        done: Progress of the batch once a part has passed. Default: None, the batch is a success.
    """

    batch: BatchRecord
    planned: tuple[PlannedRange, ...]
    path: str = WHOLE
    done: Progress | None = None

    @property
    def key(self) -> str:
        """Its key for a sink."""
        return part_key(self.batch.batch_key, self.path)

    @property
    def parent_keys(self) -> tuple[str, ...]:
        """Keys of what it is within, the nearest first."""
        return tuple(part_key(self.batch.batch_key, path) for path in above(self.path))

    @property
    def ranges(self) -> Ranges:
        """The offsets that are read."""
        return tuple(planned.offsets for planned in self.planned)


OWNER_POLL_S: Final = 0.5
"""Interval at which another owner's lease is checked for its end (s)."""


class BatchLeases(LeaseRenewal):
    """Keeps batches for their owner, however long they take; within ``with``."""

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


class HandlerRuns:
    """Calls a handler, and returns what it raised; a batch that it commits itself is done then."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._ledger = context.ledger
        self._asked: set[str] = set()
        """Batches that have failed in a run that asked its sink what it has of them."""

    def is_unknown(self, batch: BatchRecord) -> bool:
        """Whether an interrupted run may have left a whole batch in its sink, under its own key."""
        known = batch.progress is not None or self.has_asked(batch.batch_key)
        return batch.outcome_unknown and not known

    def has_asked(self, key: str) -> bool:
        """Whether a run of this key that has failed asked its sink what that has of it."""
        return key in self._asked

    def live(
        self, df: DataFrame, part: BatchPart, number: int, sequence: int | None = None
    ) -> Exception | None:
        """Call the handler with a batch of the stream; what it raised.

        Without a sequence, the run is counted once it has its turn. Raised are an unreachable
        ledger, before the handler is called, and what it raised though the batch is done, if that
        ends the query.
        """
        transaction = self._transaction(part, partial(self._check_fit, part.batch))
        with self._context.turn as was_free:
            counted = sequence if was_free else None
            described = self._describe(part, number, transaction, counted)
            try:
                with transaction.watched():
                    self._context.handler(df, described)
                self._context.health.note(df)
            except Exception as error:
                if not self._is_done(part, transaction, error):
                    self._context.health.note_failed()
                    self._note_asked(part, transaction)
                    return error
                if not self._context.policy.skips or self._context.ends(error):
                    raise
        self._report_rejected(part.batch, transaction)
        return None

    def again(self, part: BatchPart, reader: BatchReader) -> Exception | None:
        """Call the handler with a batch or a part of it, read once more; what either raised."""
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
                        self._context.health.note(df, is_dense=reader.is_dense)
                    else:
                        self._context.health.note_failed()
                    raise
                self._context.health.note(df, is_dense=reader.is_dense)

        try:
            reader.run(part.planned, handle)
        except Exception as error:  # noqa: BLE001
            if not self._is_done(part, transaction, error):
                self._note_asked(part, transaction)
                if raised or self._context.ends(error):
                    return error
                # The handler was not called, or it had returned.
                return not_the_records(error) or machinery_error(
                    "The batch could not be run", error
                )
        self._report_rejected(part.batch, transaction)
        return None

    def _check_fit(self, batch: BatchRecord, rejections: Rejections) -> None:
        """Refuse a schema that has fitted nothing yet, or that has stopped fitting.

        Raises:
            OptionError: it is at fault, and not the records.
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
            " correct the schema or the producer and start the query again, or have such records"
            f" kept as dead letters with the option {FAIL_ON_MISFIT} set to false."
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
            _LOG.warning("Offsets %s of batch %s are lost (%s).", missing, key, why)
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
            "The handler of batch %s of gate %r rejected records, kept as dead letters: %d, the"
            " first of them %s-%d at %d: %r",
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
        """A batch as the handler sees it; within the handler's turn."""
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
        """Whether a part was committed before the handler raised; the error is kept then."""
        done = transaction.committed
        if transaction.is_in_doubt:
            done = self._ledger.batches.is_over(part.key)
        if done:
            self._ledger.batches.keep_error(part.batch.batch_key, error)
            _LOG.error(
                "Batch %s of gate %r is already committed by batch.transaction(), so it stays a"
                " success and is not run again; what its handler raised then is kept with it: %s",
                part.key,
                part.batch.gate,
                ErrorReport.of(error).line,
            )
        return done

    def _note_asked(self, part: BatchPart, transaction: HandlerTransaction) -> None:
        if transaction.asked:
            self._asked.add(part.key)
