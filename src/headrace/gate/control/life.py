"""The state machine of a batch run: it decides each next step, and the effect of failed calls.

`Life` only decides: it uses no clock, no ledger and no Spark. `live` is the only loop that executes
the decisions, through a `World`. The stream, its backfill, the command ``headrace backfill`` and
the test harness pass different `Terms` and have different worlds.

A test finds each record that cannot be processed. The record becomes a dead letter, and its batch
is a success. So every planned offset is passed, rejected or lost.

Parts of a batch are run to learn whether the whole sink is unavailable, or only a region of it. If
no part passes, the progress is discarded, and the batch is run as a whole again. But a part whose
outcome is unknown stays in the progress. If the handler asks the sink for the batch's key
(`batch.once`), a sink that has a part refuses the whole batch. So a part is found even if the
answer to its commit was lost.

=========  =====================================================================================
phase      effect of a failed call
=========  =====================================================================================
WHOLE      in the stream: retries first, then HOLD. In a backfill: PARTS, if ``on_failure``
           isolates and the records may be at fault; else the batch is deferred.
HOLD       a pause, and then the same call again. Each pause is twice as long as the last pause.
           If the failures report the sink as unavailable: parts are run at the 4th, 8th, 16th ...
           failure; for a batch too small for parts, the hold ends at the 16th failure.
           If the failures do not report this: parts are run at the first failure, and the hold
           ends at the 7th failure. If a part passes, the sink is reachable.
PARTS      the steps of `Bisection`. If no part passes, HOLD continues. If all parts are decided,
           the batch is a success, with dead letters; else the remaining parts are deferred.
=========  =====================================================================================

=========  ===============================================================
verdict    effect, in every phase
=========  ===============================================================
WRONG      the stream's query ends; a backfill defers the part instead
STOPPED    the query ends, and its next start runs the batch again
PARTLY_IN  PARTS, because the sink has some parts under their own keys
UNREAD     ``on_failure`` applies, without a hold and an isolation
TOO_LARGE  PARTS, without retries, if ``on_failure`` isolates
=========  ===============================================================
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from operator import itemgetter
from typing import Any, Final, Protocol

from headrace.gate.control.bisection import (
    UNLIKE,
    AwaitControl,
    Bisection,
    Isolated,
    IsolationBudget,
    Run,
)
from headrace.gate.control.hold import Held, OnOutage, OutageSettings
from headrace.gate.control.parts import WHOLE, Progress, above, size

CERTAIN_PROBE: Final = 4
"""Parts are run after this many failed calls that report the sink as unavailable. Parts are run
again after each doubling of this number."""

MOST_UNTOLD: Final = 16
"""The hold of a batch too small for parts ends after this many failed calls that report the sink as
unavailable: about ten minutes."""

MOST_DOUBTFUL: Final = 7
"""A hold ends after this many failed calls that do not report the sink as unavailable: about a
minute."""


class Verdict(Enum):
    """The meaning of a handler's exception for its batch.

    Only ``execution.verdicts.failure_of`` inspects exceptions.
    """

    RECORDS = auto()
    """The records of the batch may be the cause of the failure."""
    AWAY = auto()
    """The sink or the source is unreachable, or accepts nothing."""
    TOO_LARGE = auto()
    """A process was lost or ran out of memory, so the batch may be too large."""
    PARTLY_IN = auto()
    """The sink has parts of the batch already, and the answers to their commits were lost."""
    UNREAD = auto()
    """A read, a disk, the ledger or Spark failed, so the records are not the cause."""
    WRONG = auto()
    """The program, an option or a schema is wrong, or acknowledged records are lost."""
    STOPPED = auto()
    """The query is being stopped, or its handler has asked to end the query."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call of the handler.

    Attributes:
        verdict: The meaning of the exception.
        error: The exception that the handler raised.
        report: The reason that the ledger stores: the exception, or a sentence that explains it.
        is_blameless: Whether the exception is no evidence against the records, so that no record
            is isolated.
        is_unreached: Whether a system was unreachable or too slow. If a single record fails in this
            way, it may belong to an unavailable region of the sink.
        has_asked: Whether the handler asked the sink for the key of this call. An earlier call with
            an unknown outcome then cannot cause duplicates.
        goes_on: Whether the source skips lost records, so that the query need not end.
    """

    verdict: Verdict
    error: Any
    report: Any
    is_blameless: bool = False
    is_unreached: bool = False
    has_asked: bool = False
    goes_on: bool = False

    @property
    def ends_query(self) -> bool:
        """Whether this failure ends the query, whatever ``on_failure`` is."""
        return self.verdict in (Verdict.STOPPED, Verdict.WRONG)

    @property
    def kind(self) -> str:
        """The exception's class name with its module, such as ``builtins.ValueError``."""
        return f"{type(self.error).__module__}.{type(self.error).__qualname__}"


@dataclass(frozen=True, slots=True)
class Terms:
    """The conditions under which a batch is run.

    Attributes:
        records: Number of offsets in the batch.
        last: Action after retries and a hold have failed: ``stop``, ``defer`` or ``isolate``.
        retry_ms: Waits before each retry of the whole batch (ms). These retries precede every other
            action.
        outage: Settings of the wait for the sink. A backfill does not use them.
        budget: Limits of an isolation.
        is_live: Whether the stream runs the batch; False in a backfill.
        keeps_key: Whether the sink may have the whole batch under the batch's key. No part may run
            then.
        unknown_failed: Whether a call with an unknown outcome counts as failed.
        max_records: Largest number of offsets to run now. Default: no limit.
        is_final: Whether this is the last backfill, which convicts suspects without a test.
        can_wait: Whether batches of the stream may pass during this run and serve as controls.
    """

    records: int
    last: str = "stop"
    retry_ms: tuple[int, ...] = ()
    outage: OutageSettings = field(default_factory=OutageSettings)
    budget: IsolationBudget = field(default_factory=IsolationBudget)
    is_live: bool = True
    keeps_key: bool = False
    unknown_failed: bool = False
    max_records: int = sys.maxsize
    is_final: bool = False
    can_wait: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """The step that calls the handler with one part of the batch.

    The world stores ``before`` as the progress before the call, and ``done`` after a call that has
    passed. If the part is the whole batch, the world stores nothing before the call, and the batch
    ends when the call passes.
    """

    part: str
    before: Progress
    done: Progress


class Waited(Enum):
    """Outcome of a pause."""

    OVER = auto()
    """The whole wait has passed, or an operator has asked for the next call."""
    STOPPED = auto()
    """The query is being stopped."""
    NOT_OURS = auto()
    """Another process owns the batch now."""
    WRONG = auto()
    """The handler has never succeeded, and fails in the same way for every batch."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The step that waits before the next call. An operator can end the pause of a hold early.

    Attributes:
        ms: The wait (ms); 0 if a restart continues a hold, because the world then computes the
            remaining wait.
        failure: The failure that caused the pause; None if a restart continues a hold.
        held: The state of the hold, for the gate's row; None before a retry.
        retry: The number of the coming retry, from 1; 0 in a hold.
        whole: The failure of the whole batch, if its parts were run afterwards and none passed;
            else None.
        of_parts: The failure at which the circuit breaker of `Bisection` stopped the parts, if no
            part has passed; else None.
    """

    ms: int
    failure: Failure | None = None
    held: Held | None = None
    retry: int = 0
    whole: Failure | None = None
    of_parts: Failure | None = None


@dataclass(frozen=True, slots=True)
class AwaitOther:
    """The step that waits for another batch's call, whose result is passed to `Life.note_other`."""


@dataclass(frozen=True, slots=True)
class Reject:
    """The step that stores a convicted record as a dead letter.

    The world stores ``done``, the progress with this record, in the same transaction.
    """

    part: str
    why: Failure
    done: Progress


class Ending(Enum):
    """The kinds of `End`: what becomes of the batch and the query."""

    SUCCESS = auto()
    """All records of the batch are processed or stored as dead letters."""
    DEFERRED = auto()
    """The batch has failed, and a later backfill runs it or its unfinished parts."""
    RAISED = auto()
    """The batch has failed, and the query ends with the error."""


@dataclass(frozen=True, slots=True)
class End:
    """The step that ends the run of the batch.

    Attributes:
        kind: What becomes of the batch and the query.
        failure: The reason. None for a success, and if the run ends in a hold that a restart has
            continued, before the first call of this run.
        is_down: Whether the sink seems to be down. Failed batches are then not isolated for now.
        is_stopped: Whether the query is being stopped. A restart then continues with this batch.
        is_unknown: Whether the outcome of the last call is unknown, so that the sink may have the
            part of this call.
        whole: The failure of the whole batch, for a ``DEFERRED`` end; None if the whole batch did
            not fail in this run.
        of_parts: The failure at which the circuit breaker of `Bisection` stopped the parts; else
            None.
    """

    kind: Ending
    failure: Failure | None = None
    is_down: bool = False
    is_stopped: bool = False
    is_unknown: bool = False
    whole: Failure | None = None
    of_parts: Failure | None = None


Step = Call | Pause | AwaitOther | Reject | End


class Life:
    """The state machine of one run of a batch.

    Call `next` for a step, execute the step, and pass its result to the ``note`` method of the
    step's kind; repeat until `next` returns an `End`. `live` is this loop.

    Args:
        terms: The conditions of the run.
        progress: The progress of earlier runs.
        why: The batch's failure in an earlier run. It is stored as the reason of parts that this
            run does not reach.
        held: The hold that a restart continues; None without a hold.
        in_parts: Qualified names of exception classes with which a whole batch has failed, although
            some of its parts passed. `Life` changes this set.
        now_ms: Function that returns the ledger's time (ms since the epoch); called only for a
            hold.
        timer_ms: Function that returns a monotonic time (ms).
        shuffle: Function that shuffles a list in place.
        chance: Function that returns a random number in [0, 1).

    Attributes:
        progress: The progress of the batch.
        held: The current hold; None without a hold.
        isolated: The outcome of the isolation at the end of this run; None without an isolation.
        cause: The failure that began the isolation; None if the batch was already run in parts.
    """

    def __init__(
        self,
        terms: Terms,
        progress: Progress,
        why: Failure,
        held: Held | None = None,
        *,
        in_parts: set[str],
        now_ms: Callable[[], int],
        timer_ms: Callable[[], int],
        shuffle: Callable[[list[Any]], None],
        chance: Callable[[], float],
    ) -> None:
        self.progress, self.held = progress, held
        self.isolated: Isolated[Failure] | None = None
        self.cause: Failure | None = None
        self._terms, self._why, self._in_parts = terms, why, in_parts
        self._now_ms, self._timer_ms, self._shuffle, self._chance = (
            *(now_ms, timer_ms, shuffle, chance),
        )
        self._keeps_key = terms.keeps_key
        self._retry = 0
        self._failed: Failure | None = None
        self._pause: Pause | None = None
        self._end: End | None = None
        self._work: Bisection[Failure] | None = None
        self._began_ms = 0
        self._is_probe = self._asks = False
        self._convicted: list[tuple[str, Failure]] | None = None
        is_too_large = terms.records > terms.max_records and not terms.keeps_key
        if progress != Progress() or is_too_large:
            self._begin_parts(None)
        elif held is not None:
            self._pause = Pause(0, held=held)

    @property
    def records_left(self) -> int:
        """Number of offsets that the isolation has deferred; 0 without an isolation."""
        left = [] if self.isolated is None else self.isolated.left
        return sum(size(self._terms.records, part) for part, _ in left)

    # Decide the next step.

    def next(self, passes: int, *, is_down: bool) -> Step:
        """Return the next step of the run. The last step is an `End`.

        Args:
            passes: Number of handler calls, of this or another batch, that have passed with a
                record.
            is_down: Whether the sink seems to be down: no part passed in an isolation, and no call
                has passed since.
        """
        if self._failed is not None:
            failure, self._failed = self._failed, None
            self._whole_failed(failure, is_down=is_down)
        if self._end is not None:
            return self._end
        if self._pause is not None:
            pause, self._pause = self._pause, None
            return pause
        if self._work is None and self.progress != Progress():
            self._begin_parts(None)  # the hold has ended, and earlier runs have done some parts
        if self._work is None:
            return Call(WHOLE, self.progress, self.progress)
        step = self._next_of_parts(self._work, passes)
        if step is not None:
            return step
        self._parts_over(self._work, is_down=is_down)
        return self.next(passes, is_down=is_down)

    def _next_of_parts(self, work: Bisection[Failure], passes: int) -> Step | None:
        if self._convicted is None:
            match work.next_step(self._timer_ms() - self._began_ms, passes):
                case Run(part):
                    progress = replace(self.progress.with_done(part), runs=self.progress.runs + 1)
                    before = replace(self.progress, unknown=progress.unknown, runs=progress.runs)
                    return Call(part, replace(before, running=part), progress)
                case AwaitControl():
                    return AwaitOther()
                case None:
                    self._convicted = sorted(work.result.alone, key=itemgetter(0), reverse=True)
        while self._convicted:
            part, why = self._convicted.pop()
            if not self._is_spared(part, why):
                return Reject(part, why, self.progress.with_done(part))
            _leave(work.result, part, why)
        return None

    # Record the result of a step.

    def note(self, call: Call, failure: Failure | None) -> None:
        """Record the result of a call: its failure, or None if the call passed."""
        if self._work is not None:
            self._note_part(self._work, call, failure)
        elif failure is not None:
            self._keeps_key &= not failure.has_asked
            self._failed = failure
        else:
            self._end = End(Ending.SUCCESS)

    def note_waited(self, pause: Pause, waited: Waited) -> None:
        """Record how a pause ended. Any other end than `Waited.OVER` ends the run."""
        if waited is Waited.NOT_OURS and self._terms.last != "stop":
            self._end = End(Ending.DEFERRED, pause.failure)
        elif waited is not Waited.OVER:
            is_stopped = waited is Waited.STOPPED
            self._end = End(Ending.RAISED, pause.whole or pause.failure, is_stopped=is_stopped)

    def note_other(self, *, passed: bool | None) -> None:
        """Record whether another batch's call passed; None if no other batch ran in time."""
        if self._work is not None and passed is None:
            self._work.give_up_waiting()
        elif self._work is not None:
            self._work.record_other(passed=bool(passed))

    def note_rejected(self, reject: Reject, *, kept: bool) -> None:
        """Record whether a convicted record was stored as a dead letter.

        A record that was not stored (``kept`` is False) is deferred.
        """
        if kept:
            self.progress = reject.done
        elif self._work is not None:
            _leave(self._work.result, reject.part, reject.why)

    # React to a failure of the whole batch.

    def _whole_failed(self, failure: Failure, *, is_down: bool) -> None:
        terms, verdict = self._terms, failure.verdict
        isolates_at_once = verdict is Verdict.TOO_LARGE and terms.last == "isolate"
        if verdict is Verdict.STOPPED:
            self._end = End(Ending.RAISED, failure, is_stopped=True, is_unknown=True)
        elif not terms.is_live:
            self._backfill_failed(failure, is_down=is_down)
        elif verdict is Verdict.WRONG:
            self._end = End(Ending.RAISED, failure)
        elif self._retry < len(terms.retry_ms) and self.held is None and not isolates_at_once:
            self._retry += 1
            self._pause = Pause(terms.retry_ms[self._retry - 1], failure, retry=self._retry)
        else:
            self._hold(failure, is_down=is_down)

    def _backfill_failed(self, failure: Failure, *, is_down: bool) -> None:
        """Isolate after a failed backfill if the records may be at fault; else defer the batch."""
        is_split = failure.verdict is Verdict.PARTLY_IN
        seems_down = is_down and not self._terms.is_final and not failure.is_blameless
        if is_split or (not (failure.is_blameless or seems_down) and self._may_isolate):
            self._begin_parts(failure)
        else:
            self._end = End(Ending.DEFERRED, failure, is_down=seems_down)

    def _hold(self, failure: Failure, *, is_down: bool, has_tried: bool = False) -> None:
        """Begin or continue the hold after a failure, or end it and apply ``on_failure``.

        After some failures, parts are run first, to learn whether the sink is reachable.
        ``has_tried`` is True if the parts have just been run and none has passed. ``failure`` is
        then the failure of a part.
        """
        terms, is_certain = self._terms, failure.verdict is Verdict.AWAY
        may_try, has_parts = not self._keeps_key and terms.last != "stop", terms.records >= UNLIKE
        may_ask = may_try and has_parts and (is_certain or terms.last == "isolate")
        is_split = failure.verdict is Verdict.PARTLY_IN
        if failure.is_blameless and not (is_certain or (is_split and may_try)):
            self._by_policy(failure, is_down=is_down)
            return
        held = self._held_for(is_certain=is_certain)
        calls = 1 if held is None else held.calls + 1
        if is_certain:
            is_over = may_try and not has_parts and calls >= MOST_UNTOLD
            probes = calls >= CERTAIN_PROBE and calls & (calls - 1) == 0
        else:
            is_over = calls >= MOST_DOUBTFUL or (calls == 1 and not may_ask)
            probes = calls == 1
        is_over = is_over or terms.outage.is_over(held, self._now_ms)
        probes = probes and may_ask and not is_over
        is_known = has_parts and failure.kind in self._in_parts
        if not has_tried and (probes or (may_try and (is_split or is_known))):
            self._begin_parts(failure, is_probe=True)
        elif is_over:
            self._by_policy(failure, is_down=is_down, was_held=self.held is not None)
        else:
            self._wait(failure)

    def _held_for(self, *, is_certain: bool) -> Held | None:
        """Return the current hold if a failure continues it; None if a new hold begins.

        A hold continues only while all of its failures report the sink as unavailable, or while
        none of its failures reports this.
        """
        same = self.held is not None and self.held.is_certain == is_certain
        return self.held if same else None

    def _wait(
        self, failure: Failure, whole: Failure | None = None, of_parts: Failure | None = None
    ) -> None:
        is_certain = failure.verdict is Verdict.AWAY
        held = self._held_for(is_certain=is_certain)
        now_ms = self._now_ms()
        since_ms, calls = (now_ms, 1) if held is None else (held.since_ms, held.calls + 1)
        ms = self._terms.outage.wait_ms(calls, self._chance())
        self.held = Held(since_ms, calls, now_ms + ms, is_certain)
        self._pause = Pause(ms, failure, self.held, whole=whole, of_parts=of_parts)

    def _by_policy(self, failure: Failure, *, is_down: bool, was_held: bool = False) -> None:
        """Apply ``on_failure``, after retries and a hold: end the run or begin an isolation."""
        is_away = failure.verdict is Verdict.AWAY
        ends = is_away and self._terms.outage.on_outage is OnOutage.STOP
        seems_down = not failure.is_blameless and (is_down or was_held)
        is_in_parts = self.progress != Progress()
        if self._terms.last == "stop" or ends:
            self._end = End(Ending.RAISED, failure)
        elif failure.is_blameless or seems_down or is_in_parts or not self._may_isolate:
            self._end = End(Ending.DEFERRED, failure, is_down=seems_down, whole=failure)
        else:
            self._begin_parts(failure)

    @property
    def _may_isolate(self) -> bool:
        may = not self._keeps_key or self._terms.unknown_failed
        return self._terms.last == "isolate" and may

    # Run parts.

    def _begin_parts(self, failure: Failure | None, *, is_probe: bool = False) -> None:
        """Begin to run parts, after a failure of the whole batch or from the stored progress.

        ``failure`` is None if the stored progress continues. A probe (``is_probe``) only finds out
        whether any part passes; it runs at most `UNLIKE` parts if ``on_failure`` does not isolate.
        """
        terms, self.cause, self._is_probe = self._terms, failure, is_probe or failure is None
        self._asks = is_probe and terms.last != "isolate"
        not_run = []
        if failure is None:
            running = self.progress.running
            if running is not None:  # its outcome is unknown, so it runs first
                unknown = self.progress.unknown | ({running} if running else set())
                self.progress = replace(self.progress, running=None, unknown=unknown)
            parts = sorted(self.progress.open, key=lambda part: (part != running, part))
            not_run = [(part, self._why) for part in parts]
        elif terms.records > 1:
            self.progress = replace(self.progress, halved=frozenset({WHOLE}))
        self._began_ms = self._timer_ms()
        self._work = Bisection(
            terms.records,
            IsolationBudget(max_runs=UNLIKE) if self._asks else terms.budget,
            not_run,
            shuffle=self._shuffle,
            can_wait=terms.can_wait,
            final=terms.is_final,
            max_records=sys.maxsize if failure is not None else terms.max_records,
            kind=lambda why: why.kind,
            as_one=self.progress.unknown,
            evidence=self.progress.evidence,
        )
        if failure is not None:
            self._work.begin(failure)

    def _note_part(self, work: Bisection[Failure], call: Call, failure: Failure | None) -> None:
        part, terms = call.part, self._terms
        if failure is None:
            self.progress = call.done
            work.record(part, None)
            return
        was_unknown = part in self.progress.unknown
        # An enclosing part never runs as a whole again, because its pass would hide this failure.
        halved = call.before.halved.union(above(part))
        progress = replace(call.before, running=None, halved=halved)
        is_split = failure.verdict is Verdict.PARTLY_IN
        if was_unknown and not (is_split or terms.unknown_failed or failure.has_asked):
            progress = replace(progress, unknown=progress.unknown | {part})
        self.progress = progress
        is_wrong = failure.verdict is Verdict.WRONG
        # The sink may have the part under the part's own key; or ``on_failure`` does not isolate.
        stays_whole = part in progress.unknown or not (terms.last == "isolate" or self._asks)
        if failure.verdict is Verdict.STOPPED:
            self._end = End(Ending.RAISED, failure, is_stopped=True, is_unknown=True)
        elif is_wrong and terms.is_live and not failure.goes_on:
            self._end = End(Ending.RAISED, failure)
        elif is_wrong:
            work.leave(part, failure)
        elif failure.is_blameless and not is_split:
            work.defer(part, failure)
        elif stays_whole and not is_split:
            work.leave(part, failure)
        else:
            if size(terms.records, part) > 1:
                self.progress = replace(progress, halved=progress.halved | {part})
            work.record(part, failure)
            if self._is_spared(part, failure):
                work.spare(part)

    def _is_spared(self, part: str, why: Failure) -> bool:
        """Whether a failed part is a single record that is deferred instead of convicted.

        The record is deferred if a system was unreachable and another backfill can follow.
        """
        is_lone = size(self._terms.records, part) == 1
        return is_lone and why.is_unreached and not self._terms.is_final

    def _parts_over(self, work: Bisection[Failure], *, is_down: bool) -> None:
        """End the isolation: end the run, or continue the hold if no part has passed."""
        result = work.result
        self.progress = replace(self.progress, evidence=work.evidence)
        self._work = self._convicted = None
        whys = [*(why for _, why in result.left), *filter(None, [result.down])]
        failures = [why for why in whys if why is not self._why]  # not the earlier failure
        is_away = any(why.verdict is Verdict.AWAY for why in failures)
        nothing_passes = not result.has_passed and (result.down is not None or is_away)
        if nothing_passes and not (self.progress.done or self.progress.unknown):
            self.progress = Progress()
        if self._is_probe and self.cause is not None:
            (self._in_parts.discard if nothing_passes else self._in_parts.add)(self.cause.kind)
        if nothing_passes and self._is_probe and self._terms.is_live:
            self._none_passed(failures[-1], result.down, is_down=is_down)
            return
        self.isolated = result
        if not result.left:
            self._end = End(Ending.SUCCESS)
        else:
            self._end = End(
                Ending.DEFERRED,
                result.down or result.left[0][1],
                is_down=result.down is not None,
                whole=self.cause,
                of_parts=result.down,
            )

    def _none_passed(self, last: Failure, down: Failure | None, *, is_down: bool) -> None:
        """Continue the hold after a probe in which no part passed.

        ``last`` is the last failure of a part. ``down`` is the failure at which the circuit breaker
        of `Bisection` stopped the parts; None if it did not.
        """
        if self.cause is None or (last.is_blameless and last.verdict is not Verdict.AWAY):
            self._hold(last, is_down=is_down, has_tried=True)
        else:
            self._wait(last, self.cause, down)


def _leave(result: Isolated[Failure], part: str, why: Failure) -> None:
    result.alone.remove((part, why))
    result.left.append((part, why))


class World(Protocol):
    """The environment in which `live` executes steps: the batch's row, the handler, and time."""

    @property
    def passes(self) -> int:
        """Number of handler calls, of this or another batch, that have passed with a record."""
        ...

    @property
    def is_down(self) -> bool:
        """Whether the sink seems to be down: no part passed in an isolation, and no call since."""
        ...

    def call(self, call: Call) -> Failure | None:
        """Store the progress, call the handler with the part, and return its failure.

        Returns:
            None if the call passed.
        """
        ...

    def pause(self, pause: Pause, progress: Progress) -> Waited:
        """Store the hold and the progress, wait, and return how the pause ended."""
        ...

    def await_other(self) -> bool | None:
        """Wait for the end of another batch's call.

        Returns:
            Whether that call passed; None if no other batch ran in time.
        """
        ...

    def reject(self, reject: Reject) -> bool:
        """Store a record as a dead letter, together with the progress.

        Returns:
            Whether the dead letter was stored.
        """
        ...


def live(life: Life, world: World) -> End:
    """Execute the steps of ``life`` in ``world`` until the run ends.

    Returns:
        The end of the run, which the caller stores in the batch's row.
    """
    while True:
        match life.next(world.passes, is_down=world.is_down):
            case Call() as call:
                life.note(call, world.call(call))
            case Pause() as pause:
                life.note_waited(pause, world.pause(pause, life.progress))
            case AwaitOther():
                life.note_other(passed=world.await_other())
            case Reject() as reject:
                life.note_rejected(reject, kept=world.reject(reject))
            case End() as end:
                return end
