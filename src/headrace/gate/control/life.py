"""A batch's life: what is done next with a batch, and what a failed call of its handler leads to.

`Life` decides, and does nothing: it has no clock, no ledger and no Spark. `live` is the one loop
that does what it says, in a `World`. The stream, its backfill, the command ``headrace backfill``
and the test harness differ in their `Terms` and in their world.

=========  =====================================================================================
phase      what a failed call leads to
=========  =====================================================================================
WHOLE      of the stream: retries first, then HOLD. Of a backfill: PARTS, if ``on_failure``
           isolates and the records may be at fault; else the batch is put off.
HOLD       a pause that doubles, and the same call again. Parts are run at the 4th, 8th, 16th ...
           call that says that the sink is away, and at the first that does not say so: if one
           passes, the sink is there. The 7th call that does not say so ends the hold, and so does
           the 16th that does where the batch is too small for parts.
PARTS      what `Bisection` says. If nothing passes, HOLD goes on. If all is decided, the batch is
           a success, with dead letters; else what is left is deferred.
=========  =====================================================================================

=========  ===============================================================
verdict    at once, whatever the phase
=========  ===============================================================
WRONG      the query ends; in a part of a backfill that part is left
STOPPED    the query ends, and its next start runs the batch
PARTLY_IN  PARTS: some of them are in the sink, under their own keys
UNREAD     no hold and no isolation: ``on_failure``, with the reason
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
"""After so many calls that say that the sink is away parts are run, and each time they double."""

MOST_UNTOLD: Final = 16
"""Calls of a batch that says so and is too small for parts: about ten minutes."""

MOST_DOUBTFUL: Final = 7
"""Calls without evidence that the sink is away: about a minute."""


class Verdict(Enum):
    """What an exception says; ``execution.verdicts.failure_of`` is the only place that looks."""

    RECORDS = auto()
    """Nothing speaks against the records' fault."""
    AWAY = auto()
    """The sink, or what is read, is not there now, or takes nothing."""
    TOO_LARGE = auto()
    """A process was lost, or has no memory left."""
    PARTLY_IN = auto()
    """The sink has parts of it, and the answers to their commits were lost."""
    UNREAD = auto()
    """A read, a disk, the ledger or Spark failed, which says nothing of the records."""
    WRONG = auto()
    """The program, an option or a schema is at fault, or acknowledged records are gone."""
    STOPPED = auto()
    """The query is being stopped, or its handler has asked for its end."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A call of the handler that failed.

    Attributes:
        verdict: What it says.
        error: What was raised.
        report: Why, as the ledger keeps it: the error, or the sentence that explains it.
        is_blameless: Whether it says nothing of the records, so that none of them is looked for.
        is_unreached: Whether something could not be reached, or was too slow: a single record that
            fails so may be on a part of its sink that is away.
        has_asked: Whether the handler asked its sink what that has of this key, so that an earlier
            call with an unknown outcome is no danger any more.
        goes_on: Whether the source passes over what it has lost, so that the query need not end.
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
        """Whether the query ends with this, whatever its policy."""
        return self.verdict in (Verdict.STOPPED, Verdict.WRONG)

    @property
    def kind(self) -> str:
        """The class of what was raised."""
        return f"{type(self.error).__module__}.{type(self.error).__qualname__}"


@dataclass(frozen=True, slots=True)
class Terms:
    """How a batch is run.

    Attributes:
        records: Offsets of the batch.
        last: What follows when it still fails: ``stop``, ``defer`` or ``isolate``.
        retry_ms: Waits before calls in place, ahead of anything else (ms).
        outage: How long its sink is waited for; a backfill never waits.
        budget: The limits of an isolation.
        is_live: Whether the stream waits for it.
        keeps_key: Whether the whole may be in its sink under its own key, so that no part may run.
        unknown_failed: Whether a call whose outcome is unknown counts as failed.
        max_records: Offsets that may be run now.
        is_final: Whether this is the last backfill, which convicts without a test.
        can_wait: Whether a batch of the stream may pass meanwhile, and serve as a control.
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
    """Call the handler with this part; ``before`` is durable before, ``done`` once it has passed.

    For the whole, nothing is written before, and its success ends the batch.
    """

    part: str
    before: Progress
    done: Progress


class Waited(Enum):
    """How a pause ended."""

    OVER = auto()
    STOPPED = auto()
    """The query is being stopped."""
    NOT_OURS = auto()
    """Another process has the batch."""
    WRONG = auto()
    """The handler has never worked, and fails alike whatever it is given."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait; in a hold, or until an operator asks for a call at once.

    Attributes:
        ms: The time (ms); of a hold that a restart goes on with, the world knows what is left.
        failure: Why; None where a restart goes on with a hold.
        held: What the gate's row keeps of the hold meanwhile; None before a retry in place.
        retry: The number of this retry; 0 in a hold.
        whole: What the whole failed with before its parts did, where nothing has passed.
        of_parts: What parts without a common record failed with then.
    """

    ms: int
    failure: Failure | None = None
    held: Held | None = None
    retry: int = 0
    whole: Failure | None = None
    of_parts: Failure | None = None


@dataclass(frozen=True, slots=True)
class AwaitOther:
    """Wait until another batch's call has ended, and say whether it passed; `Life.note_other`."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Keep a convicted record as a dead letter; ``done`` is the progress with it."""

    part: str
    why: Failure
    done: Progress


class Ending(Enum):
    """What becomes of the row."""

    SUCCESS = auto()
    DEFERRED = auto()
    """Failed, and left to a backfill; a backfill puts back what it has not done."""
    RAISED = auto()
    """Failed, and the query ends with the error."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of this life.

    Attributes:
        kind: What becomes of the row.
        failure: Why; None for a success, or where a restart has waited for a sink in vain.
        is_down: Whether nothing passes, so that batches that fail are not isolated now.
        is_stopped: Whether the query is being stopped: a restart goes on where this has ended.
        is_unknown: Whether what was called last may be in the sink.
        whole, of_parts: As of a `Pause`.
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
    """Decides what is done next with a batch: `next`, then a ``note`` of what came of it.

    Args:
        terms: How it is run.
        progress: What was done of it before.
        why: What it failed with before, for its parts.
        held: The hold that it is in.
        in_parts: Classes of errors in which a part of the gate's sink was away while others passed.
            It is changed.
        now_ms: Answers the ledger's time (ms since the epoch); asked where the sink is waited for.
        timer_ms: Answers the time since some moment (ms).
        shuffle: Draws an order, in place.
        chance: Draws a number of [0, 1).

    Attributes:
        progress: What is done of it.
        held: The hold that it is in.
        isolated: The outcome of the isolation that has ended this life; None without one.
        cause: The failure that the isolation began with; None for a batch that was in parts before.
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
        """Offsets that the isolation has left to a backfill; 0 without an isolation."""
        left = [] if self.isolated is None else self.isolated.left
        return sum(size(self._terms.records, part) for part, _ in left)

    # What to do.

    def next(self, passes: int, *, is_down: bool) -> Step:
        """Return the next step.

        Args:
            passes: Calls of the handler that have passed with a record, of this batch or another.
            is_down: Whether nothing has passed since an isolation in which nothing passed.
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
            self._begin_parts(None)  # it has waited, and some of it was done before
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
                    done = replace(self.progress.with_done(part), runs=self.progress.runs + 1)
                    before = replace(self.progress, unknown=done.unknown, runs=done.runs)
                    return Call(part, replace(before, running=part), done)
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

    # What came of it.

    def note(self, call: Call, failure: Failure | None) -> None:
        """Note how a call ended; None: it passed."""
        if self._work is not None:
            self._note_part(self._work, call, failure)
        elif failure is not None:
            self._keeps_key &= not failure.has_asked
            self._failed = failure
        else:
            self._end = End(Ending.SUCCESS)

    def note_waited(self, pause: Pause, waited: Waited) -> None:
        """Note how a pause ended."""
        if waited is Waited.NOT_OURS and self._terms.last != "stop":
            self._end = End(Ending.DEFERRED, pause.failure)
        elif waited is not Waited.OVER:
            is_stopped = waited is Waited.STOPPED
            self._end = End(Ending.RAISED, pause.whole or pause.failure, is_stopped=is_stopped)

    def note_other(self, *, passed: bool | None) -> None:
        """Note how another batch's call ended; None: there was none in time."""
        if self._work is not None and passed is None:
            self._work.give_up_waiting()
        elif self._work is not None:
            self._work.record_other(passed=bool(passed))

    def note_rejected(self, reject: Reject, *, kept: bool) -> None:
        """Note whether a convicted record is a dead letter now; else it is left."""
        if kept:
            self.progress = reject.done
        elif self._work is not None:
            _leave(self._work.result, reject.part, reject.why)

    # The whole has failed.

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
        """Run parts where the records may be at fault; else leave it to a later backfill."""
        is_split = failure.verdict is Verdict.PARTLY_IN
        seems_down = is_down and not self._terms.is_final and not failure.is_blameless
        if is_split or (not (failure.is_blameless or seems_down) and self._may_isolate):
            self._begin_parts(failure)
        else:
            self._end = End(Ending.DEFERRED, failure, is_down=seems_down)

    def _hold(self, failure: Failure, *, is_down: bool, has_tried: bool = False) -> None:
        """Wait for the sink; parts are run now and then, to see whether it is there.

        The failure is of the whole; or of the parts, where none has passed (``has_tried``).
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
        """The hold that a failure belongs to; None where it is the first of its kind."""
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
        """Do what ``on_failure`` says, for neither retries nor a hold have helped."""
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

    # Parts.

    def _begin_parts(self, failure: Failure | None, *, is_probe: bool = False) -> None:
        """Isolate a batch that failed, or go on with its parts (no failure).

        A probe only asks whether any part passes. A policy that isolates nothing runs few parts.
        """
        terms, self.cause, self._is_probe = self._terms, failure, is_probe or failure is None
        self._asks = is_probe and terms.last != "isolate"
        not_run = []
        if failure is None:
            running = self.progress.running
            if running is not None:  # nobody knows what became of it, so it runs first
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
        # What it is within does not run as one again: nobody would know then that it failed.
        halved = call.before.halved.union(above(part))
        progress = replace(call.before, running=None, halved=halved)
        is_split = failure.verdict is Verdict.PARTLY_IN
        if was_unknown and not (is_split or terms.unknown_failed or failure.has_asked):
            progress = replace(progress, unknown=progress.unknown | {part})
        self.progress = progress
        is_wrong = failure.verdict is Verdict.WRONG
        # It may be in the sink, under its own key; or nobody asked which record it is.
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
        """Whether this is one record that could not reach its part of the sink, and may wait."""
        is_lone = size(self._terms.records, part) == 1
        return is_lone and why.is_unreached and not self._terms.is_final

    def _parts_over(self, work: Bisection[Failure], *, is_down: bool) -> None:
        """All parts are decided, or nothing passes."""
        result = work.result
        self.progress = replace(self.progress, evidence=work.evidence)
        self._work = self._convicted = None
        whys = [*(why for _, why in result.left), *filter(None, [result.down])]
        failures = [why for why in whys if why is not self._why]  # those of this life
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
        """Wait on: whole, unless a part may be in the sink."""
        if self.cause is None or (last.is_blameless and last.verdict is not Verdict.AWAY):
            self._hold(last, is_down=is_down, has_tried=True)
        else:
            self._wait(last, self.cause, down)


def _leave(result: Isolated[Failure], part: str, why: Failure) -> None:
    result.alone.remove((part, why))
    result.left.append((part, why))


class World(Protocol):
    """What the loop does things with: the batch's row, the handler, and time."""

    @property
    def passes(self) -> int:
        """Calls of the handler that have passed with a record, of this batch or another."""
        ...

    @property
    def is_down(self) -> bool:
        """Whether nothing has passed since an isolation in which nothing passed."""
        ...

    def call(self, call: Call) -> Failure | None:
        """Write down what comes before it, and call the handler; None if that passed."""
        ...

    def pause(self, pause: Pause, progress: Progress) -> Waited:
        """Write the hold and the progress down, and wait."""
        ...

    def await_other(self) -> bool | None:
        """Wait for another batch's call; whether it passed, None if there is none in time."""
        ...

    def reject(self, reject: Reject) -> bool:
        """Keep a dead letter together with the progress; whether it is kept."""
        ...


def live(life: Life, world: World) -> End:
    """Run a batch to its end, step by step; the caller writes the end down."""
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
