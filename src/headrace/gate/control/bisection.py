"""Halve a failed batch until each record that cannot be processed is alone.

A batch of n records with k bad ones takes about 2·k·log2(n) runs: each bad record is on one path of
a binary tree, and both halves of each node on the path are run. Nothing is learnt for the next
isolation: running records similar to convicted ones alone saves little (31 runs for 38 with 1 bad
record of 500, 81 for 113 with 5).

The failure of a single record proves nothing: the sink may be down, or fail now and then. So a
suspect is convicted by a permutation test. The suspect is run m times, and c other records of the
batch, the controls, are run alone, in a random order. The suspect is convicted if each of its runs
fails and every control passes. A sink that does not look at the records, whatever it does and when,
produces this result with a probability of at most ::

    1 / C(m + c, m)  ≤  1 / C(16, 8)  =  1 / 12 870

because all orders are equally likely, and exactly one convicts. Rounds of runs with controls
between them have no such bound: a service that answers 503 with the text of a 400 would convict
good records. Suspects of one batch share their controls, and the bound holds for each suspect. One
suspect takes m = c = 8. Several take more controls and fewer runs each (`TrialSize.for_suspects`):
15 take 82 runs, not 128. Controls are single records, so a sink that rejects every single row
convicts no record.

A suspect that passes once is processed and cleared. If a control fails, the test is void: a new
order is drawn, at most three times for a suspect (three times the odds).

A batch with too few other records is deferred, and the batches that the stream processes meanwhile
are its controls. Some of these may contain bad records as well. So each suspect is run 12 times, in
a random order with 18 runs of the stream; f of the 18 may fail, as long as ::

    C(12 + f, 12) / C(30, 12)  ≤  1 / 12 870        (f ≤ 5)

This is Fisher's exact test: the fraction of all placements of the 12 + f failures that include all
runs of the suspect. The state of such a test is stored with the batch, so the next backfill
continues in the same order. A run of several records is a control only after the sink has accepted
a single record, or the batch has failed in nine backfills.

The breaker: if three parts without a common record fail, and nothing passes in between, the records
are not at fault. The isolation stops then, and no record is convicted.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

from headrace.core.options import require_whole
from headrace.gate.control.parts import WHOLE, beside, halves, size

ORDERS: Final = math.comb(16, 8)
"""Least number of orders of a test: a sink that ignores records convicts in one of them."""

MAX_TESTS: Final = 3
"""Most tests of a suspect in one isolation."""

UNLIKE: Final = 3
"""Number of consecutive failed parts without a common record that clears the records."""

WAITING_TRIES: Final = 12
WAITING_CONTROLS: Final = 18
"""Runs of each suspect, and of controls, in a test whose controls are the stream's batches."""

_FEWEST_CONTROLS: Final = 4
_MOST_CONTROLS: Final = 22

_RESERVE: Final = 64
"""Most records reserved for controls; at most a third of a batch of 12 or more."""

_SAMPLED_FIRST: Final = 32
"""Smallest batch (records) in which a control must pass before the batch is halved. A sink that is
down is found in three runs then. A smaller batch needs its controls later."""

_SAMPLES: Final = 8
"""Size of a reserve over the size of a sample."""


@dataclass(frozen=True, slots=True)
class IsolationBudget:
    """Limits of an isolation; ranges that remain at a limit are deferred.

    Attributes:
        max_runs: Runs of the handler after the first failed one; 1 or more. Default: 200, which
            finds some 3 bad records in a million. Too low: good records wait for the backfill
            together with bad ones.
        max_time_ms: Time limit from the first failure on (ms); above 0. Default: 60 000. The stream
            waits at most this long plus one run.

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
        """Number of runs if every control passes and every suspect fails."""
        return self.suspects * self.tries + self.controls

    @classmethod
    def for_suspects(cls, suspects: int, controls: int = _MOST_CONTROLS) -> Self | None:
        """Return the shortest test of this many suspects; None if the controls prove nothing.

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


def proves(tries: int, controls: int, failed: int) -> bool:
    """Whether a sink that ignores the records has odds of at most 1 in `ORDERS` for this result.

    >>> proves(8, 8, 0), proves(12, 18, 5), proves(12, 18, 6)
    (True, True, False)
    """
    return math.comb(tries + failed, tries) * ORDERS <= math.comb(tries + controls, tries)


T = TypeVar("T")
Why = TypeVar("Why")


@dataclass(frozen=True, slots=True)
class Run:
    """Run the handler on a part."""

    part: str


@dataclass(frozen=True, slots=True)
class AwaitControl:
    """Wait until a run of another batch has ended."""


Step = Run | AwaitControl


@dataclass(slots=True)
class Isolated(Generic[Why]):
    """Outcome of an isolation.

    Attributes:
        alone: Convicted single records, each with the reason.
        left: Deferred parts, each with the reason: parts not run (with their parent's failure, or
            the reason passed to `Bisection.defer`), parts left with `Bisection.leave`, and suspects
            not convicted.
        runs: Number of runs of the handler.
        down: The last error, if the breaker has stopped the isolation.
        has_passed: Whether a part has passed.
        largest_passed: The records of the largest part that passed; 0 if none has.
        smallest_failed: The records of the smallest part that failed, possibly the whole; None if
            no part failed.
    """

    alone: list[tuple[str, Why]] = field(default_factory=list)
    left: list[tuple[str, Why]] = field(default_factory=list)
    runs: int = 0
    down: Why | None = None
    has_passed: bool = False
    largest_passed: int = 0
    smallest_failed: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all parts of the batch passed."""
        return not (self.alone or self.left) and self.down is None


@dataclass(slots=True)
class _Suspect(Generic[Why]):
    """A record that has failed in each of its runs alone."""

    whys: list[Why]
    tests: int = 0

    def why(self, kind: Callable[[Why], object]) -> Why:
        """Return the last failure of the most frequent kind: a rare kind may be the sink's own."""
        kinds = Counter(map(kind, self.whys))
        return max(reversed(self.whys), key=lambda failure: kinds[kind(failure)])


@dataclass(slots=True)
class _Trial(Generic[Why]):
    """A test in progress.

    Attributes:
        suspects: The suspects under test.
        order: The remaining runs, the next one last: a suspect, or None for a control.
        controls: Records reserved as controls, with the failures of their parents.
        control: The last control, until it has passed with a record.
        awaits: Whether the test waits for a run of another batch as a control.
        failed: Number of failed controls; None if all controls are of this batch, and none may
            fail.
    """

    suspects: tuple[str, ...]
    order: list[str | None]
    controls: list[tuple[str, Why]]
    control: str | None = None
    awaits: bool = False
    failed: int | None = None

    def to_text(self) -> str:
        """Serialize the test for the ledger."""
        return json.dumps([self.suspects, self.order, self.failed], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Parse a text of `to_text`. Return None for any other text, and the test begins anew."""
        try:
            suspects, order, failed = json.loads(text)
            trial = cls(tuple(suspects), list(order), [], failed=failed)
            is_one = len(trial.order) <= WAITING_CONTROLS + WAITING_TRIES * len(trial.suspects)
            is_one &= type(failed) is int and proves(WAITING_TRIES, WAITING_CONTROLS, failed)
            is_one &= {*trial.suspects, None} >= {*trial.order}
        except (ValueError, TypeError, RecursionError):
            return None
        return trial if is_one and trial.suspects else None


class Bisection(Generic[Why]):
    """Decides which part of a failed batch runs next, and which records are convicted.

    ::

        work = Bisection(records, IsolationBudget(), shuffle=random.shuffle)
        work.begin(error)
        while (step := work.next_step(elapsed_ms, passes)) is not None:
            match step:
                case Run(part):
                    work.record(part, run(part))    # None, or the failure

    The parts that succeed are disjoint; together with ``alone`` and ``left`` they make up the
    batch. ``passes`` counts runs of this or another batch that succeeded with at least one record.
    Count each run before the next one begins.

    Args:
        records: Number of offsets in the batch.
        budget: The limits of this isolation.
        not_run: Parts still to be run, in order, with the failures of their parents; single records
            among them may have failed alone before.
        shuffle: Shuffles a list in place.
        can_wait: Whether runs of other batches may serve as controls.
        final: Whether a suspect is convicted without a control, as by the last backfill.
        max_records: Most offsets to run, and most offsets of one part. Default: any number.
        kind: Returns the kind of a failure; a record is convicted with the most frequent kind.
        as_one: Parts that the sink may have under their own keys. None is divided before it has
            failed, regardless of `max_records`.
        evidence: The `evidence` of an earlier isolation: the state of a test with the stream's
            controls.
    """

    def __init__(
        self,
        records: int,
        budget: IsolationBudget,
        not_run: Sequence[tuple[str, Why]] = (),
        *,
        shuffle: Callable[[list[Any]], None],
        can_wait: bool = False,
        final: bool = False,
        max_records: int = sys.maxsize,
        kind: Callable[[Why], object] = type,
        as_one: frozenset[str] = frozenset(),
        evidence: str = "",
    ) -> None:
        self.result: Isolated[Why] = Isolated()
        self._records = records
        self._budget = budget
        self._shuffle = shuffle
        self._can_wait = can_wait
        self._final = final
        self._kind = kind
        self._as_one = as_one
        self._unfinished: _Trial[Why] | None = _Trial.from_text(evidence) if evidence else None
        self._max_records = self._records_left = max_records
        self._waiting: list[tuple[str, Why]] = list(reversed(not_run))
        self._reserve: list[tuple[str, Why]] = []
        self._suspects: dict[str, _Suspect[Why]] = {}
        self._trial: _Trial[Why] | None = None
        self._failed_in_a_row: list[str] = []
        self._needs_control = False
        self._passes: int | None = None
        self._elapsed_ms = 0
        self._is_lone = sum(self._size(part) for part, _ in not_run) == 1
        self._may_be_bad = {part for part, _ in not_run if self._size(part) == 1}

    def begin(self, why: Why) -> None:
        """Record the failure of the whole batch; call this first."""
        self._is_lone = self._records == 1
        self.record(WHOLE, why)
        self._needs_control = self._records >= _SAMPLED_FIRST

    def next_step(self, elapsed_ms: int, passes: int) -> Step | None:
        """Return the next step; None at the end.

        ``elapsed_ms`` is the time since the batch failed (ms).
        """
        self._elapsed_ms = elapsed_ms
        self._count_passes(passes)
        # A backfill of one record delays no other record, and must end one day.
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
        """Return a required control first, then a run of a test, then a part not run yet."""
        if self._needs_control and self._trial is None:
            return self._take_sample()
        is_due = self._trial is None and self._is_test_due()
        if is_due and not self.result.has_passed and self._not_run():
            # Without a sample, a sink that is down would be called for each suspect's tries.
            return self._take_sample()
        if self._trial is not None or (is_due and self._draw_test()):
            return self._next_of_test()
        return self._next_part()

    def _next_part(self) -> Step | None:
        if not self._waiting and self._reserve:
            self._waiting.append(self._reserve.pop())
        while self._waiting:
            part, why = self._waiting.pop()
            records, is_first = self._size(part), self._records_left == self._max_records
            if part in self._as_one and is_first:
                return self._run(part)
            if records > self._max_records and part not in self._as_one:
                self._divide(part, why)
            elif records > self._records_left:
                self._waiting.append((part, why))
                return None
            else:
                return self._run(part)
        return None

    def record(self, part: str, why: Why | None) -> None:
        """Record the result of a part's run; None for success."""
        result, records = self.result, self._size(part)
        if why is None:
            result.has_passed = True
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
        """Record the result of another batch's run, after `AwaitControl`."""
        self._needs_control &= not passed
        if (trial := self._trial) is not None and trial.awaits:
            trial.awaits = False
            if trial.failed is not None:
                trial.failed += not passed
            if not passed and (
                trial.failed is None or not proves(WAITING_TRIES, WAITING_CONTROLS, trial.failed)
            ):
                self._end_test()

    def give_up_waiting(self) -> None:
        """Leave all parts that wait for another batch, because no other batch runs."""
        self._can_wait = False
        if (trial := self._trial) is not None and trial.awaits:
            if trial.failed is None:
                self._end_test()
            else:
                trial.awaits = False
                trial.order.append(None)
                self._suspend(trial)

    def _suspend(self, trial: _Trial[Why]) -> None:
        """Leave a test to a later isolation."""
        self._trial, self._unfinished = None, trial
        for suspect in self._suspects.values():
            suspect.tests = MAX_TESTS

    @property
    def evidence(self) -> str:
        """The state of a test that a later isolation continues; "" without a test."""
        return "" if self._unfinished is None else self._unfinished.to_text()

    def spare(self, part: str) -> None:
        """Stop testing a record that failed alone: the record is left, whatever the others do."""
        if part in self._suspects:
            self._suspects[part].tests = MAX_TESTS

    def leave(self, part: str, why: Why) -> None:
        """Leave a failed part that is not to be halved or isolated; the other parts continue."""
        self._suspects.pop(part, None)
        self.result.left.append((part, why))
        self._end_test_of(part)

    def defer(self, part: str, why: Why) -> None:
        """Leave a part that could not be run, and all waiting parts."""
        waiting = [path for path, _ in self._not_run()]
        if part not in self._suspects:
            waiting.insert(0, part)
        self._trial = None
        self._waiting, self._reserve = [], []
        self.result.left += [(path, why) for path in waiting]
        self._end()

    def _size(self, part: str) -> int:
        return size(self._records, part)

    def _count_passes(self, passes: int) -> None:
        before, self._passes = self._passes, passes
        trial = self._trial
        has_passed = before is not None and passes > before
        if trial is not None and trial.control is not None:
            # A control without a record, such as a gap in the log, is no evidence.
            trial.order += [] if has_passed else [None]
            trial.control = None
        if has_passed:
            self._failed_in_a_row.clear()
            self._needs_control = False

    def _is_test_due(self) -> bool:
        """Whether to test suspects now: after all parts, or while the budget suffices."""
        suspects = self._untested()
        test = TrialSize.for_suspects(len(suspects)) if suspects else None
        if test is None:
            return False
        if not self._waiting:
            return True
        single_records, following = self._others(), self._waiting[-1][0]
        left_then = single_records - self._size(following) * (following not in self._as_one)
        if left_then < test.controls and single_records >= _FEWEST_CONTROLS:
            return True
        return self._runs_left() <= test.runs

    def _runs_left(self) -> int:
        """Return the number of runs that the budget allows, at the pace of the runs so far."""
        runs, budget = self.result.runs, self._budget
        left = budget.max_runs - runs
        if not runs or not self._elapsed_ms:
            return left
        left_ms = budget.max_time_ms - self._elapsed_ms
        return min(left, left_ms * runs // self._elapsed_ms)

    def _draw_test(self) -> bool:
        """Begin a test of as many suspects as the budget allows. Return whether a test began."""
        single_records, left, suspects = self._others(), self._runs_left(), self._untested()
        if self._can_wait and single_records < _FEWEST_CONTROLS:
            return not single_records and self._draw_waiting_test(suspects)
        while suspects:
            test = TrialSize.for_suspects(len(suspects), single_records)
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

    def _draw_waiting_test(self, suspects: list[str]) -> bool:
        """Continue or begin a test whose controls are the stream's batches."""
        trial, self._unfinished = self._unfinished, None
        if trial is None or self._suspects.keys().isdisjoint(trial.suspects):
            order: list[str | None] = [*suspects * WAITING_TRIES, *[None] * WAITING_CONTROLS]
            self._shuffle(order)
            trial = _Trial(tuple(suspects), order, [], failed=0)
        self._trial = trial
        return True

    def _untested(self) -> list[str]:
        """Return the suspects that may be tested once more."""
        return [part for part, suspect in self._suspects.items() if suspect.tests < MAX_TESTS]

    def _take_controls(self, wanted: int) -> list[tuple[str, Why]]:
        """Take up to ``wanted`` single records from the parts not run."""
        taken: list[tuple[str, Why]] = []
        for parts in (self._reserve, self._waiting):
            while len(taken) < wanted and (divisible := self._divisible(parts)):
                # A small part first: cutting one record off a large part leaves many parts.
                part, why = min(divisible, key=lambda waiting: self._size(waiting[0]))
                at = parts.index((part, why))
                if self._size(part) == 1:
                    taken.append(parts.pop(at))
                else:
                    parts[at : at + 1] = [(half, why) for half in reversed(halves(part))]
        return taken

    def _next_of_test(self) -> Step | None:
        trial = self._trial
        assert trial is not None  # noqa: S101  (the caller has looked)
        while trial.order and any(part in self._suspects for part in trial.suspects):
            part = trial.order.pop()
            if part is None and not trial.controls:
                trial.controls = self._take_controls(1)
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

    def _end_test_of(self, part: str) -> None:
        """End the test whose last control was this part."""
        if self._trial is not None and self._trial.control == part:
            self._end_test()

    def _end_test(self, *, is_over: bool = False) -> None:
        """End the test: convict its suspects if it is over, else count the draw."""
        trial, self._trial = self._trial, None
        assert trial is not None  # noqa: S101  (a test is in progress)
        self._reserve += trial.controls
        for part in trial.suspects:
            if (suspect := self._suspects.get(part)) is None:
                continue
            suspect.tests += 1
            if is_over:
                self.result.alone.append((part, suspect.why(self._kind)))
                del self._suspects[part]

    def _take_sample(self) -> Step | None:
        """Run a sample of the parts not run yet, or wait for another batch; None without either."""
        parts = self._reserve or self._waiting[-1:]
        if sum(self._size(part) for part, _ in self._not_run()) < _SAMPLED_FIRST:
            # Any part: else bad records in one place would fail every sample of every attempt.
            parts = self._not_run()
        if not parts:
            return AwaitControl() if self._can_wait else None
        part, why = self._drawn(parts)
        self._reserve = [waiting for waiting in self._reserve if waiting[0] != part]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] != part]
        sample = part
        most = max(1, min(self._size(part), _RESERVE) // _SAMPLES)
        while self._size(sample) > most and part not in self._as_one:
            sample = self._drawn(halves(sample))
        self._reserve += [(path, why) for path in beside(part, sample)]
        return self._run(sample)

    def _drawn(self, choices: Sequence[T]) -> T:
        order = list(range(len(choices)))
        self._shuffle(order)
        return choices[order[0]]

    def _run(self, part: str) -> Run:
        self.result.runs += 1
        self._records_left -= self._size(part)
        return Run(part)

    def _note_failure(self, part: str, why: Why) -> None:
        # A record that an isolation has left alone may be bad: no evidence against the sink.
        if part not in self._suspects and part not in self._may_be_bad:
            apart = [path for path in self._failed_in_a_row if not part.startswith(path)]
            self._failed_in_a_row = [*apart, part]
        if len(self._failed_in_a_row) >= UNLIKE:
            self.result.down = why
        elif len(self._failed_in_a_row) > 1:
            self._needs_control = True

    def _divide(self, part: str, why: Why) -> None:
        """Halve a part. If no other part is left for controls, reserve its middle.

        Bad records come first or last in a batch more often than in its middle.
        """
        total = self._size(part)
        wanted = min(_RESERVE, max(total // 3, min(total // 2, _FEWEST_CONTROLS)))
        if self._waiting or self._reserve or not wanted:
            self._waiting += [(half, why) for half in reversed(halves(part))]
            return
        kept = part + "1"
        while self._size(kept) > wanted:
            kept += "0"
        self._reserve.append((kept, why))
        self._waiting += [(path, why) for path in sorted(beside(part, kept), reverse=True)]

    def _divisible(self, parts: Sequence[tuple[str, Why]]) -> list[tuple[str, Why]]:
        return [waiting for waiting in parts if waiting[0] not in self._as_one]

    def _others(self) -> int:
        """Return the number of single records left for controls."""
        return sum(self._size(part) for part, _ in self._divisible(self._not_run()))

    def _not_run(self) -> list[tuple[str, Why]]:
        controls = [] if self._trial is None else self._trial.controls
        return [*reversed(self._waiting), *self._reserve, *controls]

    def _end(self) -> None:
        """Leave all parts that are not convicted; a last backfill convicts the suspects."""
        self.result.left += self._not_run()
        for part, suspect in self._suspects.items():
            if self._final and self.result.down is None:
                self.result.alone.append((part, suspect.why(self._kind)))
            else:
                self.result.left.append((part, suspect.why(self._kind)))
        if self._trial is not None and self._trial.failed is not None:
            self._unfinished = self._trial
        self._trial = None
        self._suspects.clear()
        self._waiting.clear()
        self._reserve.clear()
