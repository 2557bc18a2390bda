"""Find the bad records of a failed batch by bisection, and prove by a test that they are bad.

The batch is halved until each record that fails is alone. A batch of n records with k bad records
takes about 2·k·log2(n) runs: each bad record is on one path of a binary tree, and both halves of
each node on the path are run. An isolation does not learn from earlier isolations, because this
would save little: 31 runs instead of 38 with 1 bad record of 500, and 81 instead of 113 with 5.

The failure of a single record proves nothing, because the sink may be down or fail now and then. So
a record that failed alone is only a suspect, and a permutation test convicts it. In one random
order, the suspect is run m times, and c other records of the batch, the controls, are run alone.
The suspect is convicted if each of its runs fails and every control passes. If the sink's failures
do not depend on the records, this result has a probability of at most ::

    1 / C(m + c, m)  ≤  1 / C(16, 8)  =  1 / 12 870

because all orders are equally likely, and exactly one order convicts. A fixed order of runs and
controls has no such bound: a service that reports its outage (503) as a bad request (400) would
convict good records. All suspects of a batch share the controls, and the bound holds for each
suspect. A single suspect takes m = c = 8. Several suspects take more controls and fewer runs each
(`TrialSize.for_suspects`): 15 suspects take 82 runs, not 128. Each control is a single record, so a
sink that rejects every single row convicts no record.

A suspect that passes once is processed and cleared. If a control fails, the test is void. A new
order is then drawn, at most three times for a suspect (which triples the probability of an error).

A batch with too few other records is deferred. Its controls are then the batches that the stream
processes meanwhile. Some of these batches may contain bad records as well. So each suspect is run
12 times, in a random order with 18 runs of the stream. Of the 18 runs, f may fail, as long as ::

    C(12 + f, 12) / C(30, 12)  ≤  1 / 12 870        (f ≤ 5)

This is Fisher's exact test: the probability that all 12 runs of the suspect are among the 12 + f
failures by chance. The state of this test is stored with the batch, so the next backfill continues
it in the same order. A run of several records counts as a control only after the sink has accepted
a single record, or after the batch has failed in nine backfills.

A circuit breaker ends the isolation, without a conviction, if three parts without a common record
fail and no run passes in between. The cause is then not in the records.
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
"""A permutation test has at least this many equally likely orders of its runs. Failures that do not
depend on the records convict a good record in exactly one of these orders."""

MAX_TESTS: Final = 3
"""Largest number of tests of one suspect in one isolation."""

UNLIKE: Final = 3
"""The isolation stops after this many failed parts that have no record in common, if no run has
passed in between. The records are then not at fault."""

WAITING_TRIES: Final = 12
WAITING_CONTROLS: Final = 18
"""Number of controls in a test whose controls are batches of the stream. In this test, each suspect
is run `WAITING_TRIES` times."""

_FEWEST_CONTROLS: Final = 4
_MOST_CONTROLS: Final = 22

_RESERVE: Final = 64
"""At most this many records of a batch are reserved for controls. A batch of 12 or more records
reserves at most a third of its records."""

_SAMPLED_FIRST: Final = 32
"""If a batch has at least this many records, a control must pass before the batch is halved. So
three runs suffice to find that a sink is down. A smaller batch saves its controls for the test."""

_SAMPLES: Final = 8
"""A random sample of a part has at most 1 / `_SAMPLES` of the part's records (but at least one
record), and at most `_RESERVE` / `_SAMPLES` records in all."""


@dataclass(frozen=True, slots=True)
class IsolationBudget:
    """Limits of an isolation. Parts that have not been run when a limit is reached are deferred.

    Attributes:
        max_runs: Largest number of handler runs after the first failed run; 1 or more. Default:
            200, which suffices to find about 3 bad records in a million. Too low: good records wait
            for the backfill together with bad records.
        max_time_ms: Largest duration, from the first failure on (ms); 1 or more. Default: 60 000.
            The stream waits at most this long plus one run.

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
    """Numbers of runs in a permutation test.

    Attributes:
        suspects: Number of suspects.
        tries: Number of runs of each suspect.
        controls: Number of other records that are run alone, once each.
    """

    suspects: int
    tries: int
    controls: int

    @property
    def runs(self) -> int:
        """Number of runs in the test if every control passes and every suspect always fails."""
        return self.suspects * self.tries + self.controls

    @classmethod
    def for_suspects(cls, suspects: int, controls: int = _MOST_CONTROLS) -> Self | None:
        """Return the test with the fewest runs for this number of suspects.

        Returns:
            None if fewer than four controls are available, because no test is possible then.

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
    """Whether a test with ``failed`` failed controls proves that the suspect's record is bad.

    The result proves this if chance alone produces it with a probability of at most 1 / `ORDERS`.

    >>> proves(8, 8, 0), proves(12, 18, 5), proves(12, 18, 6)
    (True, True, False)
    """
    return math.comb(tries + failed, tries) * ORDERS <= math.comb(tries + controls, tries)


T = TypeVar("T")
Why = TypeVar("Why")


@dataclass(frozen=True, slots=True)
class Run:
    """The step that runs the handler on one part of the batch."""

    part: str


@dataclass(frozen=True, slots=True)
class AwaitControl:
    """The step that waits until another batch has been run. That run serves as a control."""


Step = Run | AwaitControl


@dataclass(slots=True)
class Isolated(Generic[Why]):
    """Outcome of an isolation.

    Attributes:
        alone: The convicted single records, each with the failure that convicted it.
        left: The deferred parts, each with a reason: parts that were not run (the reason is the
            parent's failure, or was passed to `Bisection.defer`), parts passed to
            `Bisection.leave`, and suspects that were not convicted.
        runs: Number of handler runs.
        down: The last failure, if the circuit breaker has stopped the isolation; else None.
        has_passed: Whether any part has passed.
        largest_passed: Number of records in the largest part that passed; 0 if no part has passed.
        smallest_failed: Number of records in the smallest part that failed, where the whole batch
            counts as a part; None without a failure.
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
        """Whether all parts have passed: no record was convicted, and no part was deferred."""
        return not (self.alone or self.left) and self.down is None


@dataclass(slots=True)
class _Suspect(Generic[Why]):
    """A suspect: a single record that has failed in each of its runs.

    Attributes:
        whys: The failures of these runs.
        tests: Number of permutation tests of the record so far.
    """

    whys: list[Why]
    tests: int = 0

    def why(self, kind: Callable[[Why], object]) -> Why:
        """Return the suspect's last failure of its most frequent kind.

        A rare kind may be a failure of the sink, not of the record.
        """
        kinds = Counter(map(kind, self.whys))
        return max(reversed(self.whys), key=lambda failure: kinds[kind(failure)])


@dataclass(slots=True)
class _Trial(Generic[Why]):
    """A permutation test in progress.

    Attributes:
        suspects: The records under test.
        order: The remaining runs in reverse order: the next run is last. An entry is a suspect, or
            None for a control.
        controls: Records of this batch that are reserved as controls, each with the failure of the
            run from which the record was reserved.
        control: The control that was run last; None after the next step. A control without records
            does not count: it does not increase the number of passed runs.
        awaits: Whether the test waits for a run of another batch as a control.
        failed: Number of failed controls in a test whose controls are batches of the stream. None
            in any other test: there, a failed control makes the test void.
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
        """Parse a test that `to_text` has serialized.

        Returns:
            None for an invalid text. The caller then begins a new test.
        """
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
    """One isolation: decides which part of a failed batch runs next, and which records are bad.

    ::

        work = Bisection(records, IsolationBudget(), shuffle=random.shuffle)
        work.begin(error)
        while (step := work.next_step(elapsed_ms, passes)) is not None:
            match step:
                case Run(part):
                    work.record(part, run(part))    # None, or the failure

    The parts that pass are disjoint. Together with ``result.alone`` and ``result.left`` they make
    up the batch. ``passes`` is the number of runs, of this or another batch, that have passed with
    at least one record. The caller counts each run before it asks for the next step.

    Args:
        records: Number of offsets in the batch.
        budget: The limits of this isolation.
        not_run: Parts still to be run, in order, each with the failure of its parent. A single
            record in the list may have failed alone before.
        shuffle: Function that shuffles a list in place.
        can_wait: Whether runs of other batches may serve as controls.
        final: Whether the suspects left at the end are convicted untested, as in the last backfill.
        max_records: Largest number of offsets to run in total, and in one part. Default: no limit.
        kind: Function that returns the kind of a failure. A conviction reports a failure of the
            record's most frequent kind.
        as_one: Parts that the sink may have under their own keys. Such a part is not divided before
            it has failed, even if it exceeds `max_records`.
        evidence: The `evidence` of an earlier isolation, so that its test continues. Default:
            empty, no test.

    Attributes:
        result: The outcome so far.
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
        """Record the failure of the whole batch. Call this before `next_step`."""
        self._is_lone = self._records == 1
        self.record(WHOLE, why)
        self._needs_control = self._records >= _SAMPLED_FIRST

    def next_step(self, elapsed_ms: int, passes: int) -> Step | None:
        """Return the next step of the isolation; None at the isolation's end.

        Args:
            elapsed_ms: The time since the batch failed (ms).
            passes: Number of runs, of this or another batch, that have passed with a record.
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
        """Return the next step: a required control, a run of a test, or a part not run yet."""
        if self._needs_control and self._trial is None:
            return self._take_sample()
        is_due = self._trial is None and self._is_test_due()
        if is_due and not self.result.has_passed and self._not_run():
            # Without a sample, all runs of all suspects would be made while the sink is down.
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
        """Record the result of a part's run: its failure, or None if it passed."""
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
        """Record the result of another batch's run, for which `AwaitControl` waited."""
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
        """Continue without controls of other batches, because no other batch runs.

        A test that waits for a control is suspended if its controls are batches of the stream.
        Otherwise the test is ended.
        """
        self._can_wait = False
        if (trial := self._trial) is not None and trial.awaits:
            if trial.failed is None:
                self._end_test()
            else:
                trial.awaits = False
                trial.order.append(None)
                self._suspend(trial)

    def _suspend(self, trial: _Trial[Why]) -> None:
        """Suspend a test for a later isolation to continue. This isolation begins no other test."""
        self._trial, self._unfinished = None, trial
        for suspect in self._suspects.values():
            suspect.tests = MAX_TESTS

    @property
    def evidence(self) -> str:
        """The serialized state of a suspended test, for a later isolation; empty without a test."""
        return "" if self._unfinished is None else self._unfinished.to_text()

    def spare(self, part: str) -> None:
        """Exclude a single failed record from tests, so that it is deferred, not convicted."""
        if part in self._suspects:
            self._suspects[part].tests = MAX_TESTS

    def leave(self, part: str, why: Why) -> None:
        """Defer one failed part without halving it, and continue with the other parts."""
        self._suspects.pop(part, None)
        self.result.left.append((part, why))
        self._end_test_of(part)

    def defer(self, part: str, why: Why) -> None:
        """End the isolation: defer a part that could not be run, and all parts not run yet."""
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
            # A control that contains no record, such as a gap in the log, proves nothing.
            trial.order += [] if has_passed else [None]
            trial.control = None
        if has_passed:
            self._failed_in_a_row.clear()
            self._needs_control = False

    def _is_test_due(self) -> bool:
        """Whether a test of the suspects must begin now.

        A test begins when all other parts have been run. The test begins earlier if too few
        controls or too few runs would be left for it.
        """
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
        """Return how many more runs the budget allows, at the mean time of the runs so far."""
        runs, budget = self.result.runs, self._budget
        left = budget.max_runs - runs
        if not runs or not self._elapsed_ms:
            return left
        left_ms = budget.max_time_ms - self._elapsed_ms
        return min(left, left_ms * runs // self._elapsed_ms)

    def _draw_test(self) -> bool:
        """Begin a test of as many suspects as the budget allows. Return False if no test began."""
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
        """Begin a test whose controls are batches of the stream, or continue a suspended test."""
        trial, self._unfinished = self._unfinished, None
        if trial is None or self._suspects.keys().isdisjoint(trial.suspects):
            order: list[str | None] = [*suspects * WAITING_TRIES, *[None] * WAITING_CONTROLS]
            self._shuffle(order)
            trial = _Trial(tuple(suspects), order, [], failed=0)
        self._trial = trial
        return True

    def _untested(self) -> list[str]:
        """Return the suspects that have been tested fewer than `MAX_TESTS` times."""
        return [part for part, suspect in self._suspects.items() if suspect.tests < MAX_TESTS]

    def _take_controls(self, wanted: int) -> list[tuple[str, Why]]:
        """Remove up to ``wanted`` single records from the parts not run yet, and return them."""
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
        """End the current test if this part is the control that was run last."""
        if self._trial is not None and self._trial.control == part:
            self._end_test()

    def _end_test(self, *, is_over: bool = False) -> None:
        """End the current test, and convict its suspects if all its runs are over."""
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
        """Return a step that runs a random sample of the parts not run yet.

        Returns:
            If all parts have been run: a wait for another batch, or None if other batches may not
            serve as controls.
        """
        parts = self._reserve or self._waiting[-1:]
        if sum(self._size(part) for part, _ in self._not_run()) < _SAMPLED_FIRST:
            # Choose from all parts: else, with bad records in one place, every sample would fail.
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
        # A single record that an earlier isolation deferred may be bad: no evidence for an outage.
        if part not in self._suspects and part not in self._may_be_bad:
            apart = [path for path in self._failed_in_a_row if not part.startswith(path)]
            self._failed_in_a_row = [*apart, part]
        if len(self._failed_in_a_row) >= UNLIKE:
            self.result.down = why
        elif len(self._failed_in_a_row) > 1:
            self._needs_control = True

    def _divide(self, part: str, why: Why) -> None:
        """Halve a part. If no other part can give controls, reserve records from its middle.

        Bad records are more often at the start or the end of a batch than in its middle.
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
        """Return the number of records, in parts not run yet, that can serve as controls."""
        return sum(self._size(part) for part, _ in self._divisible(self._not_run()))

    def _not_run(self) -> list[tuple[str, Why]]:
        controls = [] if self._trial is None else self._trial.controls
        return [*reversed(self._waiting), *self._reserve, *controls]

    def _end(self) -> None:
        """Defer all parts that were not run, and all suspects.

        The last backfill convicts the suspects instead, unless the sink is down.
        """
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
