"""Isolation: halve failed ranges until each record that cannot be processed is alone.

A batch of n records of which k cannot be processed takes about 2·k·log2(n) runs to find them: each
bad record is on one path of a binary tree, and each node of the path has two halves that are run.

A single failure of a lone record proves nothing: the sink may be down, or fail now and then. So it
is convicted in rounds, and after each round something else must pass, a *control*::

    found   F F F   control   F F F F   control   F F F F F   control   6 F   control

A handler that fails at every m-th call, or for a while, lets the record pass in one of the rounds.
The rounds have different lengths, so that no period fits all of them. A good record that fails with
the probability p at each call is convicted with p^18·(1-p)^4 at most, and only if all that was run
before failed as if that record were bad. If something has failed without a cause, or nothing led to
the record, there are six rounds: p^33·(1-p)^6.

Two proofs are shorter, while nothing has failed without a cause. A record that fails with the kind
of failure of one that was convicted in full in this batch has two rounds: p^7·(1-p)^2. A record
that is *accused* (`headrace.control.likeness`) has two, of one failure and two: in this run of the
query a record of its form was convicted of this kind of failure in full, or by such a proof after
that, and no record of the form has passed. A batch with accused records is cut once: each alone,
the others between. One outage convicts nobody, for a control lies between the rounds; a sink that
comes and goes in the very words of a convicted record convicts one like it with p^3·(1-p)^2.

The breaker: if three parts that have no record in common fail, and nothing passes in between, the
records are not at fault. Isolation stops then, and no record is convicted.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from headrace.control.likeness import FailureKind
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

FIRST_ROUND: Final = 3
"""Number of failures of a record in the first round; each later round is longer by one."""

ROUNDS: Final = 4
"""Rounds after which a record is convicted to which halving has led, and nothing else failed."""

ROUNDS_IN_DOUBT: Final = 6
"""The same, where something failed without a cause, or nothing led to the record."""

ROUNDS_ALIKE: Final = 2
"""The same, where a record of this batch was convicted in full of the same kind of failure."""

ROUNDS_ACCUSED: Final = 2
"""The same for an accused record that fails with a known kind; its first round is one failure."""

UNLIKE: Final = 3
"""So many parts without a common record fail in a row, and it is not the records."""

_RESERVE: Final = 64
"""Records that are kept for controls, at most; but no more than a third of the batch."""

_CONTROLS: Final = 8
"""Into how many controls a reserve is cut, if it has as many records."""

_SAMPLED_FIRST: Final = 32
"""The records from which on a batch is not halved before a control has passed: a sink that is down
is found in three runs then. A smaller batch needs its controls later."""


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

        bad · (2·log2(records) + 17) + 5

    >>> expected_runs(7_131, 1)
    48
    """
    found = max(bad, 1)
    again = sum(range(FIRST_ROUND, FIRST_ROUND + ROUNDS)) - 1
    return found * (2 * math.ceil(math.log2(max(records, 2))) + again) + ROUNDS + 1


@dataclass(slots=True)
class _Suspect(Generic[Why]):
    """A record that has failed alone, as often as it was run: in these rounds, and in this one."""

    whys: list[Why]
    rounds: int = 0
    in_round: int = 1

    @property
    def why(self) -> Why:
        """The last of its failures' most frequent kind: one of another may be the sink's own."""
        kinds = Counter(map(type, self.whys))
        return max(reversed(self.whys), key=lambda each: kinds[type(each)])


class Isolation(Generic[Why]):
    """Decides which part of a failed batch runs next, and which records are convicted.

    ::

        isolation = Isolation(IsolationBudget())
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
        can_wait: Whether something else may pass meanwhile.
        final: Whether a batch of one record is convicted without a control: by its last backfill.
        kind_of: The kind of a failure. Default: no two failures are of one kind.
        known: Kinds of which this run of the query has convicted records in full.
    """

    def __init__(
        self,
        budget: IsolationBudget,
        not_run: Sequence[tuple[Ranges, Why]] = (),
        *,
        can_wait: bool = False,
        final: bool = False,
        kind_of: Callable[[Why], FailureKind] | None = None,
        known: Collection[FailureKind] = (),
    ) -> None:
        self.result: Isolated[Why] = Isolated()
        self._kind_of = kind_of
        self._known = frozenset(known)
        self._accused: set[Ranges] = set()
        self._budget = budget
        self._can_wait = can_wait
        self._final = final
        self._waiting: list[tuple[Ranges, Why]] = list(reversed(not_run))
        self._reserve: list[tuple[Ranges, Why]] = []
        self._cuts: list[Cut] = []
        self._suspects: dict[Ranges, _Suspect[Why]] = {}
        self._unexplained: list[Ranges] = []
        self._failed_in_a_row: list[Ranges] = []
        self._needs_control = False
        self._sample: tuple[Ranges, Why] | None = None
        self._passes: int | None = None
        self._is_lone = sum(count(part) for part, _ in not_run) == 1
        self._in_doubt = self._is_lone

    def begin(self, batch: Ranges, why: Why, accused: Sequence[OffsetRange] = ()) -> None:
        """Record that the batch itself has failed, first of all; these records of it are accused.

        An accused record is one offset. Accused records are run between the parts of the rest.
        """
        self._is_lone = self._in_doubt = count(batch) == 1
        rest = cut_out(batch, accused)
        if accused and rest:
            self._cut_out(batch, why, rest, [(each,) for each in accused])
            return
        self.record(batch, why)
        self._needs_control = count(batch) >= _SAMPLED_FIRST

    def next_step(self, elapsed_ms: int, passes: int) -> Step | None:
        """Return the next step, so long after the batch failed (ms); None at the end."""
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
        """Controls that are needed come first, then suspects, then parts that were not run yet."""
        if self._sample is not None:
            (sample, _), self._sample = self._sample, None
            return self._run(sample)
        if self._needs_control:
            return self._control()
        if (part := self._due()) is not None:
            return self._run(part)
        if not self._waiting and any(
            each.rounds < self._rounds(part) for part, each in self._suspects.items()
        ):
            return self._control()
        if not self._waiting and self._reserve:
            self._waiting.append(self._reserve.pop())
        return self._run(self._waiting.pop()[0]) if self._waiting else None

    def record(self, part: Ranges, why: Why | None) -> None:
        """Record how a part ended that was to be run; None for success."""
        result, records = self.result, count(part)
        if why is None:
            result.largest_passed = max(result.largest_passed, records)
            if self._suspects.pop(part, None) is not None:
                self._doubt()
            self._look_for_causes()
            return
        result.smallest_failed = min(result.smallest_failed or records, records)
        self._note_failure(part, why)
        if self._kind_of is None or self._kind_of(why) not in self._known:
            self._prove_in_full(part)
        if (suspect := self._suspects.get(part)) is not None:
            suspect.whys.append(why)
            suspect.in_round += 1
        elif count(part) == 1:
            self._suspects[part] = _Suspect([why])
        elif self.result.down is not None:
            self._waiting.append((part, why))
        else:
            self._divide(part, why)

    def leave(self, part: Ranges, why: Why) -> None:
        """Leave a part that failed, and is not to be halved or isolated; the others go on."""
        self._suspects.pop(part, None)
        self.result.left.append((part, why))

    def defer(self, part: Ranges, why: Why) -> None:
        """Leave a part that could not be run, and all that still wait, which cannot be either."""
        waiting = [each for each, _ in self._not_run()]
        if part not in self._suspects:
            waiting.insert(0, part)
        self._waiting, self._reserve, self._sample = [], [], None
        self.result.left += [(each, why) for each in waiting]
        self._end()

    def give_up_waiting(self) -> None:
        """Report that nothing else passes: parts that wait for it are left."""
        self._can_wait = False

    def _rounds(self, part: Ranges) -> int:
        if self._in_doubt:
            return ROUNDS_IN_DOUBT
        if part in self._accused:
            return ROUNDS_ACCUSED
        if self._kind_of is None:
            return ROUNDS
        kinds = set(map(self._kind_of, self._suspects[part].whys))
        proved = [each.whys for each in self._suspects.values() if each.rounds >= ROUNDS]
        return (
            ROUNDS_ALIKE if kinds in [set(map(self._kind_of, each)) for each in proved] else ROUNDS
        )

    def _is_through(self, part: Ranges, suspect: _Suspect[Why]) -> bool:
        """Whether it has failed as often as its round is long, and waits for a control."""
        first_round = 1 if part in self._accused else FIRST_ROUND
        return suspect.in_round >= first_round + suspect.rounds

    def _count_passes(self, passes: int) -> None:
        before, self._passes = self._passes, passes
        if before is None or passes <= before:
            return
        self._failed_in_a_row.clear()
        self._needs_control = False
        for part, suspect in self._suspects.items():
            if self._is_through(part, suspect):
                suspect.rounds, suspect.in_round = suspect.rounds + 1, 0

    def _due(self) -> Ranges | None:
        if not (self._can_wait or self._waiting or self._reserve):
            return None
        for part, suspect in self._suspects.items():
            if suspect.rounds < self._rounds(part) and not self._is_through(part, suspect):
                return part
        return None

    def _control(self) -> Step | None:
        """Run a sample of the parts not run yet, or wait for others; None without either."""
        if not self._reserve and self._waiting:
            self._reserve.append(self._waiting.pop(0))
        if not self._reserve:
            return AwaitControl() if self._can_wait else None
        part, why = self._reserve.pop()
        total = count(part)
        if self._is_last_control():
            return self._run(part)
        sample, rest = cut_after(part, max(1, min(total, _RESERVE) // _CONTROLS))
        if not rest:
            return self._run(part)
        self._reserve.append((rest, why))
        self._sample = (sample, why)
        return Cut(part, (sample, rest))

    def _is_last_control(self) -> bool:
        """Whether nothing else waits, and every suspect lacks no more than this control."""
        lacking = (self._rounds(part) - each.rounds for part, each in self._suspects.items())
        return not self._waiting and not self._reserve and max(lacking, default=0) == 1

    def _run(self, part: Ranges) -> Run:
        self.result.runs += 1
        return Run(part)

    def _note_failure(self, part: Ranges, why: Why) -> None:
        apart = [each for each in self._failed_in_a_row if not is_within(part, each)]
        # An accused record is run to fail: that says nothing of the sink.
        if part not in self._suspects and part not in self._accused:
            self._failed_in_a_row = [*apart, part]
        if len(self._failed_in_a_row) >= UNLIKE:
            self.result.down = why
        elif len(self._failed_in_a_row) > 1:
            self._needs_control = True

    def _cut_out(
        self, batch: Ranges, why: Why, rest: Sequence[Ranges], accused: Sequence[Ranges]
    ) -> None:
        """Cut out the accused; parts of the rest are run between them, and the last one is kept."""
        if len(rest) == 1:
            total = count(rest[0])
            rest = [each for each in cut_after(rest[0], total - min(_RESERVE, total // 3)) if each]
        self.result.smallest_failed = count(batch)
        self._unexplained.append(batch)
        self._failed_in_a_row = [batch]
        self._accused = set(accused)
        first, gaps = (rest[:-1] or rest), max(len(rest) - 1, 1)
        order: list[Ranges] = []
        for n in range(gaps):
            order += first[n : n + 1]
            order += accused[n * len(accused) // gaps : (n + 1) * len(accused) // gaps]
        self._waiting = [(each, why) for each in reversed(order)]
        self._reserve = [(each, why) for each in rest[1:][-1:]]
        self._cuts.append(Cut(batch, (*order, *(part for part, _ in self._reserve))))

    def _divide(self, part: Ranges, why: Why) -> None:
        """Halve a part; where nothing else is left for controls, keep its middle for them.

        Bad records come first or last in a batch more often than in its middle.
        """
        self._unexplained.append(part)
        # A part of the rest fails before anything has passed: the sink may be down.
        self._needs_control |= bool(self._accused) and self.result.largest_passed == 0
        total = count(part)
        reserved = 0 if self._waiting or self._reserve else min(_RESERVE, total // 3)
        first, rest = cut_after(part, (total - reserved + 1) // 2)
        reserve, second = cut_after(rest, reserved)
        self._reserve += [(reserve, why)] if reserve else []
        self._waiting += [(each, why) for each in (second, first) if each]
        self._cuts.append(Cut(part, tuple(each for each in (first, reserve, second) if each)))

    def _look_for_causes(self) -> None:
        """Something passed: see whether there is still a cause for each failure before."""
        causes = [*self._suspects, *(part for part, _ in (*self._not_run(), *self.result.left))]
        for failed in list(self._unexplained):
            if not any(is_within(each, failed) for each in causes):
                self._unexplained.remove(failed)
                self._doubt()

    def _doubt(self) -> None:
        self._in_doubt = True
        for part in list(self._accused):
            self._prove_in_full(part)

    def _prove_in_full(self, part: Ranges) -> None:
        """An accused record is one like any other from now on."""
        if part in self._accused and (suspect := self._suspects.get(part)) is not None:
            suspect.rounds = 0
        self._accused.discard(part)

    def _not_run(self) -> list[tuple[Ranges, Why]]:
        sample = [] if self._sample is None else [self._sample]
        return [*reversed(self._waiting), *sample, *self._reserve]

    def _end(self) -> None:
        """Convict who failed in all rounds, and leave the others."""
        for part, suspect in self._suspects.items():
            if suspect.rounds >= self._rounds(part) or (self._final and self._is_lone):
                self.result.alone.append((part[0], suspect.why))
            else:
                self.result.left.append((part, suspect.why))
        self.result.left += self._not_run()
        self._sample = None
        self._suspects.clear()
        self._waiting.clear()
        self._reserve.clear()
