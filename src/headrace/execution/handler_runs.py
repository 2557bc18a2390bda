"""Runs of a handler: with a batch of the stream, or with what a batch planned, read once more."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from pyspark.sql import DataFrame

from headrace.control.isolation import Ranges
from headrace.core.ranges import OffsetRange
from headrace.execution.batch import Batch, HandlerTransaction
from headrace.execution.batch_reader import BatchReader
from headrace.execution.handler_errors import machinery_error, not_the_records
from headrace.execution.rejections import Rejections
from headrace.execution.run_context import RunContext
from headrace.ledger import BatchRecord, ErrorReport, Kind, PlannedRange, Status
from headrace.source.stream_offset import planned_ids

_LOG: Final = logging.getLogger("headrace.execution")


class HandlerRuns:
    """Calls a handler, and returns what it raised; a batch that it commits itself is done then."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._ledger = context.ledger
        self._asked: set[str] = set()
        """Batches that have failed in a run that asked its sink what it has of them."""

    def is_unknown(self, batch: BatchRecord) -> bool:
        """Whether an interrupted run may have left a batch in its sink, under its own key."""
        return batch.outcome_unknown and batch.batch_key not in self._asked

    def live(
        self,
        df: DataFrame,
        batch: BatchRecord,
        ranges: Ranges,
        number: int,
        sequence: int | None = None,
    ) -> Exception | None:
        """Call the handler with a batch of the stream; what it raised.

        Without a sequence, the run is counted once it has its turn. Raised are an unreachable
        ledger, before the handler is called, and what it raised though the batch is done, if that
        ends the query.
        """
        transaction = self._transaction(batch, ranges)
        with self._context.turn as was_free:
            counted = sequence if was_free else None
            described = self._describe(batch, ranges, number, transaction, counted)
            try:
                with transaction.watched():
                    self._context.handler(df, described)
                self._context.health.note(df)
            except Exception as error:
                if not self._is_done(batch, transaction, error):
                    self._note_asked(batch, transaction)
                    return error
                if not self._context.policy.skips or self._context.ends(error):
                    raise
        self._report_rejected(batch, transaction)
        return None

    def again(self, batch: BatchRecord, reader: BatchReader) -> Exception | None:
        """Call the handler with what the batch planned, read once more; what either raised."""
        planned = self._ledger.batches.ranges(batch.batch_key)
        ranges = tuple(each.offsets for each in planned)
        transaction = self._transaction(batch, ranges)
        raised: list[Exception] = []

        def handle(df: DataFrame) -> None:
            with self._context.turn:
                described = self._describe(batch, ranges, None, transaction)
                try:
                    with transaction.watched():
                        self._context.handler(df, described)
                except Exception as error:
                    raised.append(error)
                    if transaction.committed:
                        self._context.health.note(df, is_dense=reader.is_dense)
                    raise
                self._context.health.note(df, is_dense=reader.is_dense)

        try:
            reader.run(planned, handle)
        except Exception as error:  # noqa: BLE001
            if not self._is_done(batch, transaction, error):
                self._note_asked(batch, transaction)
                if raised or self._context.ends(error):
                    return error
                # The handler was not called, or it had returned.
                return not_the_records(error) or machinery_error(
                    "The batch could not be run", error
                )
        self._report_rejected(batch, transaction)
        return None

    def _transaction(self, batch: BatchRecord, ranges: Ranges) -> HandlerTransaction:
        key, batches = batch.batch_key, self._ledger.batches

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

        rejections = Rejections(key, ranges, self._context.record_reader, planned, lose)
        open_ = partial(batches.transaction, key, self._context.owner, rejected=rejections.read)
        return HandlerTransaction(key, open_, rejections)

    def _report_rejected(self, batch: BatchRecord, transaction: HandlerTransaction) -> None:
        """Log what a batch rejected that is a success now, and copy it where dead letters go."""
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
        batch: BatchRecord,
        ranges: Ranges,
        number: int | None,
        transaction: HandlerTransaction,
        sequence: int | None = None,
    ) -> Batch:
        """A batch as the handler sees it; within the handler's turn."""
        if sequence is None:
            sequence = self._ledger.gates.next_sequence(batch.gate)
        # A backfill counts as an attempt only when it has failed.
        again = batch.status is Status.BACKFILLING
        return Batch(
            batch.batch_key,
            number,
            ranges,
            batch.attempts + again,
            Kind.BACKFILL if again else batch.kind,
            sequence,
            self._parents(batch),
            transaction.open,
            transaction.reject,
            transaction.ask,
        )

    def _parents(self, batch: BatchRecord) -> tuple[str, ...]:
        """The keys of the batches that this one was split off, the nearest first."""
        found: list[str] = []
        row: BatchRecord | None = batch
        while row is not None and row.parent is not None:
            found.append(row.parent)
            row = self._ledger.batches.get(row.parent)
        return tuple(found)

    def _is_done(
        self, batch: BatchRecord, transaction: HandlerTransaction, error: Exception
    ) -> bool:
        """Whether a batch was committed before the handler raised; the error is kept then."""
        done = transaction.committed
        if transaction.is_in_doubt:
            found = self._ledger.batches.get(batch.batch_key)
            done = found is not None and found.status is Status.SUCCESS
        if done:
            self._ledger.batches.keep_error(batch.batch_key, error)
            _LOG.error(
                "Batch %s of gate %r is already committed by batch.transaction(), so it stays a"
                " success and is not run again; what its handler raised then is kept with it: %s",
                batch.batch_key,
                batch.gate,
                ErrorReport.of(error).line,
            )
        return done

    def _note_asked(self, batch: BatchRecord, transaction: HandlerTransaction) -> None:
        """Note that a batch has failed in a run that asked its sink what it has of it."""
        if transaction.asked:
            self._asked.add(batch.batch_key)
