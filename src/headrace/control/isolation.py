"""Isolation: halve failed ranges until each record that cannot be processed is alone.

A batch of n records of which k cannot be processed takes about 2·k·log2(n) runs to find them: each
bad record is on one path of a binary tree, and each node of the path has two halves that are run.

A failure of a lone record proves nothing: the sink may be down, or fail now and then. So a suspect
is convicted by a permutation test. It is run m times, and c other records of the batch, the
controls, are run alone, in an order drawn at random. It is convicted if it fails each time and
every control passes. A sink that does not look at the records, whatever it does and when, does
that with at most ::

    1 / C(m + c, m)  ≤  1 / C(16, 8)  =  1 / 12 870

for all orders are equally likely, and one of them is the wrong one. Suspects of one batch share
their controls, and the bound holds for each. One suspect takes m = c = 8. Several take more
controls and fewer runs each (`TrialSize.for_suspects`): 15 take 82 runs, not 128. Controls are
single records, so a sink that takes no single row convicts nobody.

A suspect that passes once is processed, and free. If a control fails, the test says nothing: it is
drawn anew, at most three times for a suspect (three times the odds). A batch with too few others is
deferred; its controls are then what the stream processes meanwhile.

The breaker: if three parts that have no record in common fail, and nothing passes in between, the
records are not at fault. Isolation stops then, and no record is convicted.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Self, TypeVar

from headrace.control.parts import (
    AwaitControl,
    Cut,
    Ranges,
    Run,
    Step,
    count,
    cut_after,
    cut_out,
    is_within,
)
from headrace.core.options import require_whole
from headrace.core.ranges import OffsetRange

ORDERS: Final = math.comb(16, 8)
"""Orders from which a test draws at least: of one in so many a record-blind sink convicts."""

MAX_TESTS: Final = 3
"""Tests of a suspect in one isolation, at most."""

UNLIKE: Final = 3
"""So many parts without a common record fail in a row, and it is not the records."""

_FEWEST_CONTROLS: Final = 4
_MOST_CONTROLS: Final = 22

_RESERVE: Final = 64
"""Records that are kept for controls, at most; of a batch of 12 or more no more than a third."""

_SAMPLED_FIRST: Final = 32
"""The records from which on a batch is not halved before a control has passed: a sink that is down
is found in three runs then. A smaller batch needs its controls later."""

_SAMPLES: Final = 8
"""Into how many samples a reserve is cut, if it has as many records."""


@dataclass(frozen=True, slots=True)
class IsolationBudget:
    """Limits of an isolation; ranges that are left then are deferred.

    Attributes:
        max_runs: Runs of the handler after the first failed one; 1 or more. Default: 200, which
            finds some 3 bad records in a million. Too low: good records wait for the backfill
            beside bad ones.
        max_time_ms: Time limit from the first failure on (ms); above 0. Default: 60 000. The stream
            waits that long at most, and one run more.

    Raises:
        OptionError: A number is out of its range.
    """

    max_runs: int = 200
    max_time_ms: int = 60_000

    def __post_init__(self) -> None:
        require_whole("isolate's max_runs", self.max_runs, 1)
        require_whole("isolate's max_time", self.max_time_ms, 1, unit="ms")


@dataclass(frozen=True, slots=True)
class TrialSize:
    """Size of a permutation test.

    Attributes:
        suspects: Number of suspects.
        tries: Runs of each suspect.
        controls: Runs of other records.
    """

    suspects: int
    tries: int
    controls: int

    @property
    def runs(self) -> int:
        """Runs that it takes if every control passes and every suspect fails."""
        return self.suspects * self.tries + self.controls

    @classmethod
    def for_suspects(cls, suspects: int, controls: int = _MOST_CONTROLS) -> Self | None:
        """Return the shortest test of so many suspects; None where so few controls prove nothing.

        ::

        >>> TrialSize.for_suspects(1), TrialSize.for_suspects(1, controls=4)
        (TrialSize(suspects=1, tries=8, controls=8), TrialSize(suspects=1, tries=22, controls=4))
        >>> TrialSize.for_suspects(15).runs
        82
        """
        sizes = [
            cls(suspects, _tries(number), number)
            for number in range(_FEWEST_CONTROLS, min(controls, _MOST_CONTROLS) + 1)
        ]
        return min(sizes, key=lambda size: size.runs, default=None)


def _tries(controls: int) -> int:
    tries = 1
    while math.comb(tries + controls, controls) < ORDERS:
        tries += 1
    return tries


Why = TypeVar("Why")


@dataclass(slots=True)
class Isolated(Generic[Why]):
    """Outcome of an isolation.

    Attributes:
        alone: The single offsets that are convicted: they cannot be processed, each with why.
        left: Ranges that are deferred, each with why: not run (their parent's failure, or what
            `Isolation.defer` was given), left with `Isolation.leave`, or alone and not convicted.
        runs: Number of runs of the handler.
        down: The last error, if the breaker has stopped this.
        nothing_passed, is_undone: Whether no part has passed; whether the batch is whole again.
        largest_passed: The records of the largest part that passed; 0 where none has.
        smallest_failed: Those of the smallest that failed, maybe the whole; None if nothing did.
    """

    alone: list[tuple[OffsetRange, Why]] = field(default_factory=list)
    left: list[tuple[Ranges, Why]] = field(default_factory=list)
    runs: int = 0
    down: Why | None = None
    nothing_passed: bool = False
    is_undone: bool = False
    largest_passed: int = 0
    smallest_failed: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all of the batch passed, in parts."""
        return not (self.alone or self.left) and self.down is None


def expected_runs(records: int, bad: int) -> int:
    """About how many runs an isolation takes that finds so many bad records among these.

    ::

        bad · 2·log2(records) + the runs of a test of so many suspects + 3

    >>> expected_runs(7_131, 1)
    45
    """
    suspects = max(bad, 1)
    test = TrialSize.for_suspects(suspects)
    assert test is not None  # noqa: S101  (there are controls enough)
    return suspects * 2 * math.ceil(math.log2(max(records, 2))) + test.runs + 3


@dataclass(slots=True)
class _Suspect(Generic[Why]):
    """A record that has failed alone, as often as it was run."""

    whys: list[Why]
    tests: int = 0

    @property
    def why(self) -> Why:
        """The last of its failures' most frequent kind: one of another may be the sink's own."""
        kinds = Counter(map(type, self.whys))
        return max(reversed(self.whys), key=lambda each: kinds[type(each)])


@dataclass(slots=True)
class _Trial(Generic[Why]):
    """A test that goes on.

    Attributes:
        suspects: Who is tested.
        order: What is still to be run, the next one last: a suspect, or None for a control.
        controls: Records that are left for controls, with why their parents failed.
        control: The control that was run last, until it is known to have passed with a record.
        awaits: Whether a run of another batch is waited for in place of a control.
    """

    suspects: tuple[Ranges, ...]
    order: list[Ranges | None]
    controls: list[tuple[Ranges, Why]]
    control: Ranges | None = None
    awaits: bool = False


class Isolation(Generic[Why]):
    """Decides which part of a failed batch runs next, and which records are convicted.

    ::

        isolation = Isolation(IsolationBudget(), shuffle=random.shuffle)
        isolation.begin(batch, error)
        while (step := isolation.next_step(elapsed_ms, passes)) is not None:
            match step:
                case Run(part):
                    isolation.record(part, run(part))    # None, or why it failed

    The parts that succeed are disjoint, and with ``alone`` and ``left`` they make up the batch.
    ``passes`` counts what has passed, of this batch or another: runs that succeeded with at least
    one record, and each before the next one began.

    Args:
        budget: The limits of this isolation.
        not_run: Parts that an earlier isolation had still to run, with why their parents failed.
        shuffle: Draws the order of a test, in place.
        can_wait: Whether runs of other batches may serve as controls.
        final: Whether a batch of one record is convicted without a control: by its last backfill.
    """

    def __init__(
        self,
        budget: IsolationBudget,
        not_run: Sequence[tuple[Ranges, Why]] = (),
        *,
        shuffle: Callable[[list[Ranges | None]], None],
        can_wait: bool = False,
        final: bool = False,
    ) -> None:
        self.result: Isolated[Why] = Isolated()
        self._budget = budget
        self._shuffle = shuffle
        self._can_wait = can_wait
        self._final = final
        self._waiting: list[tuple[Ranges, Why]] = list(reversed(not_run))
        self._reserve: list[tuple[Ranges, Why]] = []
        self._cuts: list[Cut] = []
        self._hints: frozenset[Ranges] = frozenset()
        self._suspects: dict[Ranges, _Suspect[Why]] = {}
        self._trial: _Trial[Why] | None = None
        self._failed_in_a_row: list[Ranges] = []
        self._needs_control = False
        self._sample: tuple[Ranges, Why] | None = None
        self._passes: int | None = None
        self._elapsed_ms = 0
        self._is_lone = sum(count(part) for part, _ in not_run) == 1

    def begin(self, batch: Ranges, why: Why, hints: Sequence[OffsetRange] = ()) -> None:
        """Record that the batch itself has failed, first of all.

        Single records in ``hints`` look bad: they are run alone, between the parts of the rest.
        """
        self._is_lone = count(batch) == 1
        rest = cut_out(batch, hints)
        if hints and rest:
            self._cut_out(batch, why, rest, hints)
            return
        self.record(batch, why)
        self._needs_control = count(batch) >= _SAMPLED_FIRST

    def next_step(self, elapsed_ms: int, passes: int) -> Step | None:
        """Return the next step, so long after the batch failed (ms); None at the end."""
        self._elapsed_ms = elapsed_ms
        self._count_passes(passes)
        if self._cuts:
            return self._cuts.pop(0)
        # A backfill of one record keeps nobody waiting, and must come to its end one day.
        unlimited = self._is_lone and self._can_wait
        spent = self.result.runs >= self._budget.max_runs or elapsed_ms >= self._budget.max_time_ms
        tried = self._final and self._is_lone and self._suspects
        if not ((spent and not unlimited) or tried or self.result.down is not None):
            step = self._next_run()
            if step is not None:
                return step
        self._end()
        return None

    def _next_run(self) -> Step | None:
        """A control that is needed comes first, then a test, then parts that were not run yet."""
        if self._sample is not None:
            (sample, _), self._sample = self._sample, None
            return self._run(sample)
        if self._needs_control and self._trial is None:
            return self._take_sample()
        is_due = self._trial is None and self._is_test_due()
        if is_due and not self.result.largest_passed and (self._reserve or self._waiting):
            return self._take_sample()  # or a sink that is down is asked for each suspect's tries
        if self._trial is not None or (is_due and self._draw_test()):
            return self._cuts.pop(0) if self._cuts else self._next_of_test()
        if not self._waiting and self._reserve:
            self._waiting.append(self._reserve.pop())
        return self._run(self._waiting.pop()[0]) if self._waiting else None

    def record(self, part: Ranges, why: Why | None) -> None:
        """Record how a part ended that was to be run; None for success."""
        result, records = self.result, count(part)
        if why is None:
            result.largest_passed = max(result.largest_passed, records)
            self._suspects.pop(part, None)
            return
        result.smallest_failed = min(result.smallest_failed or records, records)
        self._note_failure(part, why)
        if (suspect := self._suspects.get(part)) is not None:
            suspect.whys.append(why)
        elif records == 1:
            self._suspects[part] = _Suspect([why])
            self._end_test_of(part)
        elif self.result.down is not None:
            self._waiting.append((part, why))
        else:
            self._divide(part, why)

    def record_other(self, *, passed: bool) -> None:
        """Record how the run of another batch ended that was waited for, with `AwaitControl`."""
        self._needs_control &= not passed
        if (trial := self._trial) is not None and trial.awaits:
            trial.awaits = False
            if not passed:
                self._end_test()

    def give_up_waiting(self) -> None:
        """Report that no other batch runs: what waits for one is left."""
        self._can_wait = False
        if self._trial is not None and self._trial.awaits:
            self._end_test()

    def leave(self, part: Ranges, why: Why) -> None:
        """Leave a part that failed, and is not to be halved or isolated; the others go on."""
        self._suspects.pop(part, None)
        self.result.left.append((part, why))
        self._end_test_of(part)

    def defer(self, part: Ranges, why: Why) -> None:
        """Leave a part that could not be run, and all that still wait, which cannot be either."""
        waiting = [each for each, _ in self._not_run()]
        if part not in self._suspects:
            waiting.insert(0, part)
        self._trial, self._sample = None, None
        self._waiting, self._reserve = [], []
        self.result.left += [(each, why) for each in waiting]
        self._end()

    def _count_passes(self, passes: int) -> None:
        before, self._passes = self._passes, passes
        trial = self._trial
        has_passed = before is not None and passes > before
        if trial is not None and trial.control is not None:
            # A control without a record, such as a gap in the log, says nothing.
            trial.order += [] if has_passed else [None]
            trial.control = None
        if has_passed:
            self._failed_in_a_row.clear()
            self._needs_control = False

    def _is_test_due(self) -> bool:
        """Whether suspects are tested now: after all parts, or while the budget suffices for it."""
        suspects = self._untested()
        test = TrialSize.for_suspects(len(suspects)) if suspects else None
        if test is None:
            return False
        if not self._waiting:
            return True
        others = sum(count(part) for part, _ in self._not_run())
        left_then = others - count(self._waiting[-1][0])
        if left_then < test.controls and others >= _FEWEST_CONTROLS:
            return True
        return self._runs_left() <= test.runs

    def _runs_left(self) -> int:
        """Runs for which the budget suffices, at the pace of those before."""
        runs, budget = self.result.runs, self._budget
        left = budget.max_runs - runs
        if not runs or not self._elapsed_ms:
            return left
        left_ms = budget.max_time_ms - self._elapsed_ms
        return min(left, left_ms * runs // self._elapsed_ms)

    def _draw_test(self) -> bool:
        """Begin a test of as many suspects as the budget suffices for; whether there is one."""
        others = sum(count(part) for part, _ in self._not_run())
        controls = _MOST_CONTROLS if self._can_wait else others
        left, suspects = self._runs_left(), self._untested()
        while suspects:
            test = TrialSize.for_suspects(len(suspects), controls)
            if test is None:
                return False
            if test.runs <= left or (self._is_lone and self._can_wait):
                order = [*suspects * test.tries, *[None] * test.controls]
                self._shuffle(order)
                taken = self._take_controls(test.controls)
                self._trial = _Trial(tuple(suspects), order, taken)
                return True
            suspects.pop()
        return False

    def _untested(self) -> list[Ranges]:
        """The suspects that may be tested once more."""
        return [part for part, each in self._suspects.items() if each.tests < MAX_TESTS]

    def _take_controls(self, wanted: int) -> list[tuple[Ranges, Why]]:
        """Cut single records off what was not run; as many as wanted, if there are."""
        taken: list[tuple[Ranges, Why]] = []
        for parts in (self._reserve, self._waiting):
            while parts and len(taken) < wanted:
                part, why = parts.pop(0)
                first, rest = cut_after(part, wanted - len(taken))
                singles = [
                    (OffsetRange(r.topic, r.partition, at, at + 1),)
                    for r in first
                    for at in range(r.start, r.until)
                ]
                if rest:
                    parts.insert(0, (rest, why))
                if rest or len(singles) > 1:
                    self._cuts.append(Cut(part, (*singles, *([rest] if rest else []))))
                taken += [(each, why) for each in singles]
        return taken

    def _next_of_test(self) -> Step | None:
        trial = self._trial
        assert trial is not None  # noqa: S101  (the caller has looked)
        while trial.order and any(each in self._suspects for each in trial.suspects):
            part = trial.order.pop()
            if part is None and trial.controls:
                trial.control = trial.controls.pop()[0]
                return self._run(trial.control)
            if part is None and self._can_wait:
                trial.awaits = True
                return AwaitControl()
            if part is None:
                self._end_test()
                return self._next_run()
            if part in self._suspects:
                return self._run(part)
        self._end_test(is_over=True)
        return self._next_run()

    def _end_test_of(self, part: Ranges) -> None:
        """End the test of which this was the last control."""
        if self._trial is not None and self._trial.control == part:
            self._end_test()

    def _end_test(self, *, is_over: bool = False) -> None:
        """Convict the suspects of a test that is over; of another one count that it was drawn."""
        trial, self._trial = self._trial, None
        assert trial is not None  # noqa: S101  (one goes on)
        self._reserve += trial.controls
        for part in trial.suspects:
            if (suspect := self._suspects.get(part)) is None:
                continue
            suspect.tests += 1
            if is_over:
                self.result.alone.append((part[0], suspect.why))
                del self._suspects[part]

    def _take_sample(self) -> Step | None:
        """Run a sample of the parts not run yet, or wait for others; None without either."""
        parts = self._reserve or [each for each in self._waiting if each[0] not in self._hints][:1]
        if sum(count(part) for part, _ in self._not_run()) < _SAMPLED_FIRST:
            # Any part: where bad records lie must not decide each time anew that nothing passes.
            parts = self._not_run()
        if not parts:
            return AwaitControl() if self._can_wait else None
        order: list[Ranges | None] = [part for part, _ in parts]
        self._shuffle(order)
        part, why = next(each for each in parts if each[0] == order[0])
        self._reserve = [each for each in self._reserve if each[0] != part]
        self._waiting = [each for each in self._waiting if each[0] != part]
        sample, rest = cut_after(part, max(1, min(count(part), _RESERVE) // _SAMPLES))
        if not rest:
            return self._run(part)
        self._reserve.append((rest, why))
        self._sample = (sample, why)
        return Cut(part, (sample, rest))

    def _run(self, part: Ranges) -> Run:
        self.result.runs += 1
        return Run(part)

    def _note_failure(self, part: Ranges, why: Why) -> None:
        # A record that looks bad is run to fail: that says nothing of the sink.
        if part not in self._suspects and part not in self._hints:
            apart = [each for each in self._failed_in_a_row if not is_within(part, each)]
            self._failed_in_a_row = [*apart, part]
        if len(self._failed_in_a_row) >= UNLIKE:
            self.result.down = why
        elif len(self._failed_in_a_row) > 1:
            self._needs_control = True

    def _cut_out(
        self, batch: Ranges, why: Why, rest: Sequence[Ranges], hints: Sequence[OffsetRange]
    ) -> None:
        """Cut single records out of a batch, and keep some of the rest for controls."""
        kept = min(_RESERVE, sum(map(count, rest)) // 3)
        total = count(rest[-1])
        last, reserve = cut_after(rest[-1], max(total - kept, 0))
        parts = [each for each in (*rest[:-1], last) if each]
        self._hints = frozenset((each,) for each in hints)
        self._waiting = [(each, why) for each in (*reversed(parts), *sorted(self._hints))]
        self._reserve = [(reserve, why)] if reserve else []
        self.result.smallest_failed = count(batch)
        self._failed_in_a_row = [batch]
        children = [part for part, _ in (*reversed(self._waiting), *self._reserve)]
        self._cuts.append(Cut(batch, tuple(children)))
        self._needs_control = count(batch) >= _SAMPLED_FIRST

    def _divide(self, part: Ranges, why: Why) -> None:
        """Halve a part; where nothing else is left for controls, keep its middle for them.

        Bad records come first or last in a batch more often than in its middle.
        """
        total = count(part)
        wanted = min(_RESERVE, max(total // 3, min(total // 2, _FEWEST_CONTROLS)))
        reserved = 0 if self._waiting or self._reserve else wanted
        first, rest = cut_after(part, (total - reserved + 1) // 2)
        reserve, second = cut_after(rest, reserved)
        self._reserve += [(reserve, why)] if reserve else []
        self._waiting += [(each, why) for each in (second, first) if each]
        self._cuts.append(Cut(part, tuple(each for each in (first, reserve, second) if each)))

    def _not_run(self) -> list[tuple[Ranges, Why]]:
        sample = [] if self._sample is None else [self._sample]
        controls = [] if self._trial is None else self._trial.controls
        return [*reversed(self._waiting), *sample, *self._reserve, *controls]

    def _end(self) -> None:
        """Leave what is not convicted; a last backfill convicts its one record."""
        self.result.left += self._not_run()
        for part, suspect in self._suspects.items():
            if self._final and self._is_lone:
                self.result.alone.append((part[0], suspect.why))
            else:
                self.result.left.append((part, suspect.why))
        self._trial, self._sample = None, None
        self._suspects.clear()
        self._waiting.clear()
        self._reserve.clear()
