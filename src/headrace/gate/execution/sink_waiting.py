"""Keeps a gate's batch waiting, in place, while its sink is away."""

import itertools
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from headrace.errors import BatchSplitError, RejectionError
from headrace.gate.control.sink_outage import Next, SinkOutage, failed, going_on, next_step
from headrace.gate.execution.handler_errors import (
    not_the_records,
    took_too_much,
    unreachable_source,
)
from headrace.gate.execution.handler_runs import RunContext
from headrace.gate.execution.sink_outage import sink_is_away
from headrace.gate.ledger.error_report import ErrorReport, query_stopped
from headrace.gate.ledger.records import BatchRecord

_LOG: Final = logging.getLogger("headrace.execution")

_LOOKS_A_QUERY: Final = 4
"""Every fourth look, some 2 s, asks the ledger: a thousand gates may wait for one sink."""

_LOG_MS: Final = 60_000


class SinkWaiting:
    """The outage of a gate's sink, if there is one; in the ledger: a restart goes on in it."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._ledger = context.ledger
        self._settings = context.policy.outage
        self._gate = ""
        self._outage: SinkOutage | None = None
        self._logged_ms = 0
        self._has_looked = False
        self._in_parts: set[str] = set()
        """Exceptions by which a part of the sink was away, and other parts of a batch passed."""
        self._is_eased = False
        """Whether the law has been told, and no batch has gone through at once since."""
        self.rate_after_outage: float | None = None
        """The rate that the last outage has left in force (records/s); None where it is as before.
        """

    def resume(self, batch: BatchRecord, *, waits: bool) -> bool:
        """Go on where a run before has left this batch; whether that waited for its sink.

        The outage that another batch waited for is over. The rest of the wait is kept if this
        ``waits``.

        Raises:
            InterruptedError: the query is being stopped.
        """
        self._gate = batch.gate
        if not self._has_looked:
            self._has_looked = True
            self._outage = self._ledger.sink_outages.get(batch.gate)
        outage = self._outage
        if outage is not None and outage.batch != batch.batch_key:
            self._forget()
        if self._outage is None or outage is None:
            return False
        now_ms = self._ledger.database_time_ms()
        _LOG.warning(
            "Batch %s of gate %r goes on waiting, for %s by now: %s",
            outage.batch,
            batch.gate,
            _span(now_ms - outage.since_ms),
            outage.error,
        )
        self._logged_ms = now_ms
        if waits:
            self._wait(batch, outage.next_ms - now_ms, InterruptedError("The query was stopped."))
        return True

    def hold(
        self,
        batch: BatchRecord,
        error: Exception,
        *,
        run: Callable[[BatchRecord], Exception | None],
        try_parts: Callable[[Exception], Exception | None] | None,
        has_parts: bool,
    ) -> Exception | None:
        """Run a batch that has failed again and again, in place, while its sink is away.

        Args:
            batch: the live batch.
            error: what it failed with.
            run: calls the handler with all of it; what that raised.
            try_parts: runs parts of it; None where some passed and each has its outcome, else what
                was raised, and the batch is whole again. None where it cannot be run in parts.
            has_parts: whether it is large enough that parts of it tell.

        Returns:
            What is left to the policy; None where the batch, or each part of it, is done.

        Raises:
            Exception: what it failed with last, for the query is being stopped.
        """
        last: Exception | None = error
        while last is not None and not self._context.ends(last):
            is_certain = is_away(last)
            # The commit of a part was lost, and the sink has that part: it is run as parts again.
            is_split = isinstance(last, BatchSplitError) and try_parts is not None
            if not is_certain and not is_split and not_the_records(last):
                break
            kind = ErrorReport.of(last).error_class
            step = (
                Next.TRY_PARTS
                if is_split or (kind in self._in_parts and has_parts)
                else next_step(
                    self._outage,
                    self._settings,
                    0 if self._outage is None else self._ledger.database_time_ms(),
                    is_certain=is_certain,
                    has_parts=has_parts,
                    may_try=try_parts is not None
                    and (is_certain or self._context.policy.last == "isolate"),
                )
            )
            if step is Next.TRY_PARTS and try_parts is not None:
                last, step = try_parts(last), Next.WAIT
                (self._in_parts.discard if last else self._in_parts.add)(kind)
                is_certain = last is not None and is_away(last)
                if last is None or (not is_certain and not_the_records(last)):
                    break
            if step is Next.LEAVE:
                if self._outage is not None:
                    self._context.health.stopped_by(last)
                break
            row = self._await_next(batch, last, is_certain=is_certain)
            if row is None:
                break
            last = run(row)
        return last

    def _await_next(
        self, batch: BatchRecord, error: Exception, *, is_certain: bool
    ) -> BatchRecord | None:
        """Write one more failed run down, and wait; the row to run, None where it is another's.

        However often it is run, the batch has one attempt more.
        """
        key, batches = batch.batch_key, self._ledger.batches
        if self._outage is None and not batches.retry(
            key, self._context.owner, self._context.lease_ms
        ):
            return None
        before, line = self._outage, ErrorReport.of(error).line
        now_ms = self._ledger.database_time_ms()
        known = going_on(before, is_certain=is_certain)
        wait_ms = self._settings.wait_ms(
            known.runs + 1 if known else 1, self._context.dice.random()
        )
        outage = failed(before, key, line, now_ms, wait_ms, is_certain=is_certain)
        self._ledger.sink_outages.keep(batch.gate, outage)
        self._outage = outage
        if before is None:
            self._logged_ms = now_ms
            _LOG.warning(
                "Batch %s of gate %r waits, and the gate admits nothing more: %s; it is run again"
                " after waits of up to %s, %s: %s",
                key,
                batch.gate,
                f"{outage.awaited} is away" if is_certain else "no part of it passes",
                _span(self._settings.max_retry_ms),
                self._how_long(is_certain=is_certain),
                line,
            )
        elif now_ms - self._logged_ms >= _LOG_MS:
            self._logged_ms = now_ms
            _LOG.warning(
                "Batch %s of gate %r has waited for %s, and was run %d times: %s",
                key,
                batch.gate,
                _span(now_ms - outage.since_ms),
                outage.runs,
                line,
            )
        self._wait(batch, wait_ms, error)
        row = batches.get(key)
        return row if row is not None and row.owner == self._context.owner else None

    def _how_long(self, *, is_certain: bool) -> str:
        if not is_certain:
            return "a few times"
        most_ms = self._settings.max_hold_ms
        return "until it goes through" if most_ms is None else f"for {_span(most_ms)} at most"

    def _wait(self, batch: BatchRecord, wait_ms: int, error: Exception) -> None:
        """Wait, unless somebody asks to try at once; raise the error if the query is stopped.

        The batch is left to the query's next start: its last run has raised.
        """
        looks = itertools.count(1)

        def is_asked() -> bool:
            is_due = next(looks) % _LOOKS_A_QUERY == 0
            return is_due and self._ledger.sink_outages.is_asked(batch.gate)

        if not self._context.wait(wait_ms / 1000, is_asked):
            report = query_stopped(error)
            self._ledger.batches.fail(batch.batch_key, report, owner=self._context.owner)
            raise error

    def end(self, *, is_back: bool, left: int = 0) -> bool:
        """Note that nothing waits any more: the sink is back, or the policy has its say.

        Args:
            is_back: whether the batch, or parts of it, went through.
            left: records of it that did not, and are deferred.

        Returns whether anything has waited.
        """
        if (outage := self._outage) is None:
            self._is_eased &= not is_back
            return False
        waited = _span(self._ledger.database_time_ms() - outage.since_ms)
        self._forget()
        if left:
            _LOG.warning(
                "Gate %r goes on after %s: parts of batch %s passed, and %d of its records are left"
                " to a backfill: %s",
                self._gate,
                waited,
                outage.batch,
                left,
                outage.error,
            )
        elif is_back:
            _LOG.warning(
                "Gate %r goes on after %s: batch %s is through (failed runs before: %d).",
                self._gate,
                waited,
                outage.batch,
                outage.runs,
            )
        else:
            _LOG.warning(
                "Batch %s of gate %r waits no more after %s and %d failed runs, and is left to"
                " on_failure: %s",
                outage.batch,
                self._gate,
                waited,
                outage.runs + 1,
                outage.error,
            )
        return True

    def _forget(self) -> None:
        """End the outage. A sink that was away may be slow at first; a handler's bug is over."""
        outage, self._outage = self._outage, None
        by_law = outage is not None and outage.is_certain and not self._is_eased
        self._is_eased |= by_law
        self.rate_after_outage = self._ledger.sink_outages.end(self._gate, by_law=by_law)


def is_away(error: Exception) -> bool:
    """Whether a batch failed because its sink is away, or what it is read from.

    Then the next one would fail as well.
    """
    source = unreachable_source(error)
    is_source = source is not None and not isinstance(source, RejectionError)
    return (is_source or sink_is_away(error)) and not took_too_much(error)


def _span(ms: int) -> str:
    return f"{max(ms, 0)} ms" if ms < 1_000 else str(timedelta(seconds=round(ms / 1000)))
