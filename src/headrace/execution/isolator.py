"""Isolates what cannot be processed in a batch: each half is a child, with a run and a row."""

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from headrace.backfill.splitting import split_batch
from headrace.control.isolation import Isolated, Isolation, IsolationBudget
from headrace.control.parts import AwaitControl, Cut, Ranges, Run, Step
from headrace.control.record_form import Place
from headrace.core.system import is_gone
from headrace.errors import DataLossError, HeadraceError, LedgerError
from headrace.execution.batch_reader import BatchReader
from headrace.execution.handler_errors import ends_query, no_connection, not_the_records
from headrace.execution.handler_runs import OWNER_POLL_S, BatchLeases, HandlerRuns, RunContext
from headrace.execution.sink_waiting import is_away
from headrace.ledger import BatchRecord, ErrorReport, Kind, PlannedRange, Status

_LOG: Final = logging.getLogger("headrace.execution")

Cause = Exception | ErrorReport
"""Why a batch, or a child, failed."""

_LOOK_S: Final = 0.05
"""Interval at which another batch is checked for its success (s)."""

_NOT_RUN: Final = ErrorReport(
    "NotRun", "It is a child of a batch that failed, and was not run.", ""
)


@dataclass(frozen=True)
class IsolationTerms:
    """Limits of one isolation, and how it ends.

    Attributes:
        budget: Runs and time. Default: the policy's.
        control_wait_s: How long to wait for a run of another batch that passes (s). Default: 0.
        final: Whether a batch of one record has been tried as often as it may be.
        undo: Whether a batch of which nothing passes is made whole again, if it can be, and is left
            to the caller.
    """

    budget: IsolationBudget | None = None
    control_wait_s: float = 0
    final: bool = False
    undo: bool = False


class Isolator:
    """Halves a batch until what cannot be processed stands alone.

    The outcome of a child is in the ledger before the next one is run, so that after a crash the
    same batch goes on where it was left. A record becomes a dead letter when a test has convicted
    it; ranges that are not proved or not run are ``failed``, and so backfilled. So is the rest when
    a child could not be run, or nothing passes any more: that says nothing of the child's records.

    Args:
        context: How the gate's batches are run.
        runs: Runs of its handler.
        leases: Keep the batch, and its children, for their owner.
        reader: Reads the children.
        terms: How much this may take, and how it ends.
    """

    def __init__(
        self,
        context: RunContext,
        runs: HandlerRuns,
        leases: BatchLeases,
        reader: BatchReader,
        terms: IsolationTerms,
    ) -> None:
        self._context = context
        self._ledger = context.ledger
        self._health = context.health
        self._runs = runs
        self._leases = leases
        self._owner = leases.owner
        self._reader = reader
        self._letters = reader.dead_letter_topic(context.policy.topic)
        self._terms = terms
        self._isolation: Callable[..., Isolation[Cause]] = partial(
            Isolation,
            terms.budget or context.policy.budget,
            shuffle=random.SystemRandom().shuffle,
            can_wait=terms.control_wait_s > 0,
            final=terms.final,
        )
        self._rows: dict[Ranges, BatchRecord] = {}
        self._parents: list[BatchRecord] = []
        self._has_run: set[str] = set()
        self._root: Ranges | None = None
        self._batch: BatchRecord | None = None
        self._has_passed = False
        self._forms: Mapping[Place, str] = {}

    def isolate(self, batch: BatchRecord, error: Exception) -> Isolated[Cause]:
        """Isolate a batch that failed; this owner's.

        A batch of one record that is left stays as it is where it is ``backfilling``: the caller
        writes its outcome.

        Raises:
            LedgerError: the batch is not this owner's any more.
            DataLossError, CorruptionError: a child cannot be read, and the stream stops at that.
            OptionError, SetupError: the handler's program is wrong.
            Exception: what the handler raised with which the query ends.
        """
        ranges = self._ranges(batch)
        self._rows[ranges] = batch
        self._root = ranges
        self._batch = batch
        self._has_run.add(batch.batch_key)
        isolation = self._isolation()
        self._forms = self._reader.forms(ranges) if self._health.bad_forms else {}
        isolation.begin(ranges, error, self._health.bad_forms.hints(self._forms))
        return self._run_all(isolation)

    def resume(self, batch: BatchRecord) -> Isolated[Cause]:
        """Go on with a batch whose isolation a crash interrupted; without children, run it first.

        It raises what `isolate` does.
        """
        self._batch = batch
        not_run = [(self._ranges(row), row.error or _NOT_RUN) for row in self._open(batch)]
        return self._run_all(self._isolation(not_run))

    def _run_all(self, isolation: Isolation[Cause]) -> Isolated[Cause]:
        began = time.monotonic()
        with self._health:
            while (step := self._next_step(isolation, began)) is not None:
                match step:
                    case Run(part):
                        self._run_part(isolation, part)
                    case Cut(part, children):
                        self._split(self._rows[part], children)
                    case AwaitControl():
                        self._await_control(isolation)
        return self._resolve(isolation.result)

    def _next_step(self, isolation: Isolation[Cause], began_s: float) -> Step | None:
        elapsed_ms = round((time.monotonic() - began_s) * 1000)
        return isolation.next_step(elapsed_ms, self._health.passes)

    def _await_control(self, isolation: Isolation[Cause]) -> None:
        passes, failures = self._health.passes, self._health.failures

        def has_ended() -> bool:
            return self._health.passes > passes or self._health.failures > failures

        self._context.wait(self._terms.control_wait_s, has_ended, look_s=_LOOK_S)
        if has_ended():
            isolation.record_other(passed=self._health.failures == failures)
        else:
            isolation.give_up_waiting()

    def _run_part(self, isolation: Isolation[Cause], part: Ranges) -> None:
        row = self._counted(self._rows[part])
        error = self._runs.again(row, self._reader)
        if error is None:
            self._has_passed = True
            self._succeed(row)
            isolation.record(part, None)
        elif (end := self._context.end_report(error)) is not None:
            self._abandon(end, running=row)
            raise error
        elif (unread := ends_query(error)) is not None:
            self._leave_unread(row, unread)
            isolation.leave(part, unread)
        elif (blameless := not_the_records(error)) is not None:
            isolation.defer(part, blameless)
        elif self._runs.is_unknown(row) and part != self._root:
            # It may be in the sink, under its own key.
            isolation.leave(part, error)
        else:
            isolation.record(part, error)

    def _counted(self, row: BatchRecord) -> BatchRecord:
        """A row that is about to be run, with one attempt more where it was run before."""
        key = row.batch_key
        again = key in self._has_run and row.status is Status.IN_PROGRESS
        self._has_run.add(key)
        if not (again and self._ledger.batches.retry(key, self._owner, self._leases.lease_ms)):
            return row
        counted = replace(row, attempts=row.attempts + 1)
        self._rows[self._ranges(row)] = counted
        return counted

    def _resolve(self, result: Isolated[Cause]) -> Isolated[Cause]:
        """Keep who is convicted, and leave the others to a backfill.

        Also left, but for its last backfill, is what could not reach its part of the sink.
        """
        whys = [result.down, *(why for _, why in result.left)]
        away = any(isinstance(why, Exception) and is_away(why) for why in whys)
        nothing_passes = not self._has_passed and (result.down is not None or away)
        if self._terms.undo and self._batch is not None and nothing_passes:
            key, lease_ms = self._batch.batch_key, self._leases.lease_ms
            result.nothing_passed = True
            result.is_undone = self._ledger.batches.undo_split(key, self._owner, lease_ms)
            return result
        down = None if result.down is None else self._health.stopped_by(result.down)
        for each, why in list(result.alone):
            is_spared = no_connection(why) and not self._terms.final
            if is_spared or not self._keep_dead_letter(self._rows[(each,)], why):
                result.alone.remove((each, why))
                result.left.append(((each,), why))
        self._learn(result)
        for part, why in result.left:
            key = self._rows[part].batch_key
            self._ledger.batches.fail(key, down or why, owner=self._owner)
        for parent in reversed(self._parents):
            self._succeed(parent)
        if self._letters is not None:
            self._letters.flush()
        return result

    def _learn(self, result: Isolated[Cause]) -> None:
        convicted = [(each.topic, each.partition, each.start) for each, _ in result.alone]
        if convicted and not self._forms and self._batch is not None:
            self._forms = self._reader.forms(self._ranges(self._batch))
        unknown = (
            (each.topic, each.partition, offset)
            for part, _ in result.left
            for each in part
            for offset in range(each.start, each.until)
        )
        if self._forms:
            self._health.bad_forms.learn(self._forms, convicted, unknown)

    def _leave_unread(self, row: BatchRecord, why: HeadraceError) -> None:
        goes_on = isinstance(why, DataLossError) and self._reader.passes_over_losses
        if row.kind is Kind.BACKFILL or goes_on:
            return
        self._abandon(self._context.end_report(why) or ErrorReport.of(why))
        raise why from None

    def _abandon(self, report: ErrorReport, running: BatchRecord | None = None) -> None:
        """Fail what is not done; it is run again when the query is started again."""
        for row in [*self._rows.values(), *self._parents]:
            unknown = running is not None and row.batch_key == running.batch_key
            self._ledger.batches.fail(
                row.batch_key, report, owner=self._owner, outcome_unknown=unknown
            )

    def _split(self, parent: BatchRecord, children: Sequence[Ranges]) -> tuple[BatchRecord, ...]:
        """Write the children down; those that are in progress are this owner's then.

        The process that crashed had them until its leases run out, or it is known to be gone.
        """
        topic_ids = {
            each.offsets.topic_partition: each.topic_id
            for each in self._ledger.batches.ranges(parent.batch_key)
        }
        gone: set[str] = set()
        while True:
            rows = split_batch(
                self._ledger,
                parent,
                [
                    tuple(PlannedRange(r, topic_id=topic_ids[r.topic_partition]) for r in child)
                    for child in children
                ],
                owner=self._owner,
                lease_ms=self._leases.lease_ms,
                bootstrap_servers=self._reader.bootstrap_servers,
                reason="a child of a batch that failed",
                gone=gone,
            )
            others = {
                row.owner
                for row in rows
                if row.status is Status.IN_PROGRESS and row.owner not in {None, self._owner}
            }
            if not others:
                break
            gone = {owner for owner in others if owner is not None and is_gone(owner)}
            if self._context.stopped():
                raise LedgerError(
                    f"The query was stopped before it could take over children of batch"
                    f" {parent.batch_key} of gate {parent.gate!r} from another process; they are"
                    " run when the query is started again."
                )
            if not gone:
                self._context.sleep(OWNER_POLL_S)
        self._parents.append(parent)
        self._rows.update(zip(children, rows, strict=True))
        self._leases.keep(*[row.batch_key for row in rows])
        return rows

    def _open(self, batch: BatchRecord) -> Iterator[BatchRecord]:
        children = self._ledger.batches.children(batch.batch_key)
        if not children:
            self._rows[self._ranges(batch)] = batch
            yield batch
            return
        for child in self._split(batch, [self._ranges(child) for child in children]):
            if child.status is Status.IN_PROGRESS:
                yield from self._open(child)

    def _keep_dead_letter(self, row: BatchRecord, why: Cause) -> bool:
        """Keep the one record that cannot be processed; False where it is failed instead."""
        (planned,) = self._ledger.batches.ranges(row.batch_key)
        offset = planned.offsets
        try:
            letter = self._reader.dead_letter(planned, why)
        except Exception as unread:  # noqa: BLE001  (Spark, too, may be gone by now)
            _LOG.warning("The record %s is not kept, and stays failed: %s", offset, unread)
            return False
        if letter is None:
            self._succeed(row)  # There is nothing at this offset.
            return True
        kept = self._ledger.dead_letters.add(row.batch_key, letter, owner=self._owner)
        if kept and self._letters is not None:
            self._letters.send(letter)
        _LOG.error(
            "The record %s of gate %r cannot be processed and is kept as a dead letter: %s: %r",
            offset,
            row.gate,
            letter.error.error_class,
            letter.error.message,
        )
        return True

    def _succeed(self, row: BatchRecord) -> None:
        if row.status is Status.BACKFILLING:
            self._ledger.batches.backfilled(row.batch_key, self._owner)
        else:
            self._ledger.batches.succeed(row.batch_key, owner=self._owner)

    def _ranges(self, row: BatchRecord) -> Ranges:
        return tuple(planned.offsets for planned in self._ledger.batches.ranges(row.batch_key))
