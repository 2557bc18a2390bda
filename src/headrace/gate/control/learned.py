"""The law ``learned``: it learns the cost of a batch, and plans batches that fill the interval.

`batch_cost` has the learned model: the fixed cost a of a batch, and the cost b of one record. The
surprise z of a batch is the difference from its expected time, in standard deviations. Two sums of
surprises detect a change of the job, which the model's filter alone would learn too slowly::

    up   = max(0, up + z - 0.5)        down = max(0, down - z - 0.5)

If a sum exceeds 3, the job has changed. Then b is uncertain again (``P_bb = (2 b)^2``), a is kept,
and the batches since the sum was last 0 are learned again. If a single batch raises the sum that
far, only this batch is learned again, because the earlier batches belong to the old job. This rule
is suspended for 12 batches after a change: if the cost jumps at some batch size, the law would
otherwise swing between the two sides of the jump.

A single surprising batch may be an outlier. If the next batch fits the old model better, the old
model returns, and the outlier is forgotten.

A change may affect a as well as b. For example, a handler begins to pause in each batch, whatever
the batch's size. In two cases, the law assumes that a has changed too. First, two or three changes
are detected within a few batches, each at a late batch that is smaller than the previous late
batch. Second, two changes in opposite directions are detected within a few batches, and both are
larger than noise. The standard deviation of a then becomes the lateness of the last batch.

Lasting noise (a busy disk, another process) and a drift of b make the surprises of successive
batches alike. While the model follows b well, the surprises are independent. The more alike the
surprises are, the faster b is assumed to drift (d in `batch_cost`). With z', the surprise of the
previous batch::

    c += 0.03 (z z' - c)      v += 0.03 (z^2 - v)      d = 0.03 + max(0, c / v - 0.15)

So the rate follows lasting noise. The rate ignores other noise, for which c / v has a mean of 0 and
a standard deviation of 0.12.

The next batch is the largest batch that `BatchCost.most` allows in the planned time t::

    t = max(i, a / 0.7)

If a is well known and takes more than 0.7 of the interval i, batches of any size are late, or
nearly late. The planned time is then longer than the interval, so that at least 0.3 of it is work.
Smaller batches would hardly process any records.

The cost of a batch larger than all earlier batches is unknown: the sink may have a limit that
smaller batches did not reach. So the law assumes the worst case, a time in proportion to the number
of records. T is the time of the largest batch since the last change. The next batch may be larger
than that batch by the factor::

    g = min(8, max(2, 3 t / T)),    or min(8, max(2, t / T)) while the cost is not linear

The cost counts as not linear in two cases. First, a batch with at least 4 times the records of an
earlier batch took no longer than the earlier batch; a line through such points predicts nothing.
Second, a batch larger than all earlier batches took 1.5 times its expected time and 1.5 times its
planned time. The cost counts as linear again when a batch takes 0.75 to 1.5 t, and at least twice
the time of a small batch.

So batches are small while the model is uncertain, and their growth separates a from b. If the model
allows hardly more than the smallest rate, the cause may be a large a or a large b. Until this is
known, every other batch is twice as large, to find out. After 12 batches of the same size, one
batch is twice as large.

The sources of a join get equal fractions of the time. A source without a backlog gets twice the
time that it needs, and the other sources get the rest. While the standard deviation of any source's
b is above a tenth of b, the fractions are changed by 15 %, up and down in turns. Without this
change, the record counts of two sources would always have the same ratio, and the costs of the two
sources could not be separated.
"""

import math
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

from headrace.gate.control.batch_cost import MOST_FIXED, BatchCost, Records, SourceCost
from headrace.gate.control.law import NO_TERMS, FinishedPart, Law, LawTerms, Options

_MOST_GROWTH: Final = 8.0
"""A batch has at most this many times the records of the largest batch since the last change."""

_LEAST_GROWTH: Final = 2.0
"""A batch may always have this many times the records of the largest batch since the last change.
Otherwise the law would never recognize a cost that does not depend on the records."""

_MOST_LATE: Final = 3.0
"""A growing batch takes at most this many times its planned time, if its time is in proportion to
its records. Lower: with a large fixed cost, batches grow as slowly as under PID. Higher: batches
are later."""

_FLAT_GROWTH: Final = 4.0
"""If a batch has this many times the records of a smaller batch and does not take longer, the cost
is not linear. Lower: noise may hide that the batch takes longer."""

_FLAT: Final = (0.8, 1.02)
"""A larger batch does not take longer if its time, divided by the time of the smaller batch, is
within these bounds. Below them, the smaller batch was only slow, like the first batch of a run."""

_SHOWN: Final = 0.75
"""The cost counts as linear again only after a batch that takes at least this fraction of its
planned time."""

_BENT: Final = 1.5
"""The cost is not linear if a larger batch takes more than this many times its expected time.
Lower: noise counts. Higher: the next batch is late by the same factor."""

_LIKENESS_WEIGHT: Final = 0.03
"""Weight of the newest batch in the moving averages c and v, from which the drift d is computed."""

_CHANCE: Final = 0.15
"""A correlation of successive surprises up to this value is attributed to chance. Lower: the rate
follows noise. Higher: the rate follows a drift later."""

_SLACK: Final = 0.5
"""A surprise raises a sum of surprises only by its excess over this many standard deviations."""

_CHANGE: Final = 3.0
"""The job has changed if a sum of surprises exceeds this value. Lower: noise counts as a change.
Higher: a change is detected later."""

_LATE: Final = 0.2
"""A batch that is late by more than this fraction of the interval suggests a change of the fixed
cost. Three such batches prove the change, or two if the second is late by a whole interval."""

_SOON: Final = 3
"""Two changes count as related if they are at most this many batches apart."""

_SMALLER: Final = 0.85
"""A batch counts as smaller than the last late batch if it has at most this fraction of the late
batch's records."""

_TELLING: Final = 1.5
"""The fixed cost and the record cost can be separated if the largest remembered batch has at least
this many times the records of the smallest remembered batch."""

_REMEMBERED: Final = 12
"""After a change of the job, at most this many batches are learned again."""

_OUTLIER: Final = 3.0
"""A batch with a surprise of more than this many standard deviations does not change the noise."""

_MOST_OVERHEAD: Final = 0.95
"""The time for planning and the checkpoint is a lower bound of the fixed cost, but counts only up
to this fraction of the interval and of the batch's time."""

_TILT: Final = 0.15
"""While the costs of a join's sources are not separated, each source's fraction of a batch's time
is raised and lowered in turns by this ratio."""

_LEAST_PART: Final = 0.05
"""A source gets at least this fraction of a batch's time for records, even without records."""


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """Measurements of a finished batch of a query, over all sources.

    Attributes:
        time_ms: The time when the batch ended (Unix time in ms).
        records: Number of records of each source in the batch.
        duration_ms: Duration of the batch with planning and commit (ms).
        overhead_ms: Time for planning and the checkpoint, outside the handler (ms).
        behind: The sources that still had unread records after the batch was planned.
    """

    time_ms: int
    records: Mapping[str, int]
    duration_ms: int
    overhead_ms: int = 0
    behind: Set[str] = frozenset()


@dataclass(slots=True)
class _Sum:
    """A sum of surprises in one direction, and the number of batches since the sum was 0."""

    sign: int
    value: float = 0.0
    batches: int = 0

    def add(self, surprise: float) -> bool:
        self.value = max(self.value + self.sign * surprise - _SLACK, 0.0)
        self.batches = self.batches + 1 if self.value > 0 else 0
        return self.value > _CHANGE

    def clear(self) -> None:
        self.value, self.batches = 0.0, 0


@dataclass(slots=True)
class _Likeness:
    last: float = 0.0
    product: float = 0.0
    square: float = 1.0

    def add(self, surprise: float) -> None:
        self.product += _LIKENESS_WEIGHT * (surprise * self.last - self.product)
        self.square += _LIKENESS_WEIGHT * (surprise**2 - self.square)
        self.last = surprise

    @property
    def beyond_chance(self) -> float:
        return max(self.product / self.square - _CHANCE, 0.0)


@dataclass(slots=True)
class _Bend:
    """Evidence about whether the cost of a batch is linear in its records.

    Attributes:
        is_near: Whether the cost counts as not linear.
        count: Number of records in the batch with which larger batches are compared.
        time_s: Time of that batch (s).
    """

    is_near: bool = False
    count: float = math.inf
    time_s: float = 0.0

    def add(self, count: float, time_s: float, should_s: float, *, is_late: bool) -> None:
        """Update the evidence with a batch.

        Args:
            count: Number of records in the batch.
            time_s: Time that the batch took (s).
            should_s: Time for which the batch was planned (s).
            is_late: Whether the batch was larger than all earlier batches, and took much longer
                than the model predicts.
        """
        if should_s * _SHOWN <= time_s <= should_s * _BENT and time_s >= 2 * self.time_s:
            self.is_near = False
        if count >= _FLAT_GROWTH * self.count:
            least, most = _FLAT
            self.is_near = self.is_near or least <= time_s / self.time_s <= most
        self.is_near = self.is_near or (is_late and time_s > _BENT * should_s)
        if not self.count / _FLAT_GROWTH < count < self.count * _FLAT_GROWTH:
            self.count, self.time_s = count, time_s


class LearnedBatches:
    """Learns the cost of a query's batches, with one source or several.

    An instance belongs to one run of a query. One thread passes it the batches in the order in
    which they end, also those that a limit made smaller. In the first batch of a run, workers start
    and code is compiled, so its time is only an upper bound. ::

        >>> law = LearnedBatches(interval_ms=1000)
        >>> for count in (100, 800, 6400):  # each takes 0.3 s, and 0.05 ms for each record
        ...     law.learn(FinishedBatch(0, {"orders": count}, 300 + count // 20))
        >>> round(law.records({"orders": 100.0})["orders"], -3)
        14000.0

    Args:
        interval_ms: The time that a batch should take (ms); above 0.
        costs: The costs that earlier runs have learned, by source. Default: none.

    Attributes:
        interval_ms: The time that a batch should take (ms). It may be changed between batches.
        cost: The learned cost. None before the first batch, if no earlier run has learned a cost.
        changed_ms: The time of the last detected change of the job (Unix time in ms); None for no
            change.
    """

    def __init__(self, interval_ms: int, costs: Mapping[str, SourceCost] | None = None) -> None:
        self.interval_ms = interval_ms
        self.cost = BatchCost.of_sources(costs or {})
        changes_ms = [
            cost.changed_ms for cost in (costs or {}).values() if cost.changed_ms is not None
        ]
        self.changed_ms = max(changes_ms, default=None)
        self._sums = (_Sum(+1), _Sum(-1))
        self._recent: deque[tuple[Records, float]] = deque(maxlen=_REMEMBERED)
        self._overheads_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._largest: dict[str, float] = {}
        self._largest_before: dict[str, float] = {}
        self._bend = _Bend()
        self._likeness = _Likeness()
        self._last: FinishedBatch | None = None
        self._upper_bound_s: float | None = None
        """Duration of the first batch (s), if the first cost was learned from it and the second
        batch has not ended; else None."""
        self._before: BatchCost | None = None
        """The model before the last batch, if that batch alone indicated a change; else None."""
        self._turn = False
        self._batches = 0
        self._changed_at = -_REMEMBERED
        self._change: tuple[float, float, float] | None = None
        """The batch at the last change: its lateness (s), its records, and its duration (s)."""
        self._late: list[tuple[int, float]] = []
        """Recent late batches at which a change of the job was detected, each smaller than the
        batch before it in the list: the batch's number in this run, and its number of records."""

    @property
    def _interval_s(self) -> float:
        return self.interval_ms / 1000

    def add(self, source: str, cost: SourceCost) -> None:
        """Add a source to the model, with the cost that an earlier run has learned."""
        if self.cost is None or source in self.cost.sources:
            self.cost = self.cost or BatchCost.of_sources({source: cost})
            self.changed_ms = cost.changed_ms if self.changed_ms is None else self.changed_ms
            return
        self.cost = self.cost.with_source(source, 1.0, cost.record_s)

    def learn(self, batch: FinishedBatch) -> None:
        """Update the learned cost with a finished batch.

        A batch without records, or with a duration of 0, is ignored.
        """
        records = {name: float(count) for name, count in batch.records.items() if count > 0}
        time_s = batch.duration_ms / 1000
        if not records or time_s <= 0:
            return
        is_first, self._last = self._last is None, batch
        is_late = self._has_grown(records) and self._is_late(records, time_s)
        overhead_s = min(batch.overhead_ms / 1000, _MOST_OVERHEAD * min(time_s, self._interval_s))
        self._overheads_s.append(max(overhead_s, 0.0))
        if self.cost is None:
            self.cost = BatchCost.first(records, time_s, self._interval_s)
            self._upper_bound_s = time_s
        else:
            self._learn_again(self._with_all(self.cost, records, time_s), batch, records, is_first)
        self._bend.add(sum(records.values()), time_s, self._should_s(self.cost), is_late=is_late)
        for name, count in records.items():
            self._largest[name] = max(self._largest.get(name, 0.0), count)

    def _learn_again(
        self, cost: BatchCost, batch: FinishedBatch, records: Records, is_first: bool
    ) -> None:
        time_s, bound_s = batch.duration_ms / 1000, self._upper_bound_s
        self._upper_bound_s = None
        took_less = cost.surprise(records, time_s) < 0
        if bound_s is not None and self._paid_for_starting(cost, records, time_s, bound_s):
            self.cost = BatchCost.first(records, time_s, self._interval_s)
        elif is_first and not took_less:
            self.cost = cost
        else:
            self._learn(cost, records, time_s, batch.time_ms)

    def _paid_for_starting(
        self, cost: BatchCost, records: Records, time_s: float, bound_s: float
    ) -> bool:
        """Whether the second batch shows that the first batch's time included the run's start."""
        is_larger = all(count >= self._largest.get(name, 0.0) for name, count in records.items())
        return time_s < bound_s if is_larger else cost.surprise(records, time_s) < -1

    def _has_grown(self, records: Records) -> bool:
        largest = sum(self._largest.values())
        return sum(records.values()) >= _LEAST_GROWTH * largest > 0

    def _is_late(self, records: Records, time_s: float) -> bool:
        return self.cost is not None and time_s > _BENT * self.cost.expected_s(records)

    def _with_all(self, cost: BatchCost, records: Records, time_s: float) -> BatchCost:
        for name, count in records.items():
            if name not in cost.sources:
                cost = cost.with_source(name, count, time_s - cost.expected_s(records))
        return cost

    def _learn(self, cost: BatchCost, records: Records, time_s: float, time_ms: int) -> None:
        before, self._before = self._before, None
        if before is not None:
            of_old, of_new = (abs(c.surprise(records, time_s)) for c in (before, cost))
            if of_old < min(of_new, 2.0):
                cost, self._largest = before, self._largest_before
        surprise = cost.surprise(records, time_s)
        is_outlier = abs(surprise) > _OUTLIER
        self._likeness.add(0.0 if is_outlier else surprise)
        if not is_outlier:
            cost = cost.with_noise_of(records, time_s)
        self._recent.append((records, time_s))
        self._batches += 1
        changed = [total for total in self._sums if total.add(surprise)]
        if not changed:
            drifted = cost.drifted(self._interval_s, self._likeness.beyond_chance)
            self.cost = drifted.updated(records, time_s, self._interval_s, self._least_s)
            return
        self.changed_ms = time_ms
        late_s, count = time_s - cost.expected_s(records), sum(records.values())
        was_late = self._was_late(late_s, count, cost.noise)
        is_again = self._contradicts(late_s, count, time_s, cost.noise) or was_late
        if changed[0].batches == 1 and not is_again:
            self._before = cost
        since = 1 if self._is_sudden(surprise) else changed[0].batches
        self._changed_at = self._batches
        self.cost = self._relearnt(cost, since, min(abs(late_s), time_s) if is_again else 0.0)
        self._recent.clear()
        self._largest_before, self._largest = self._largest, {}
        for total in self._sums:
            total.clear()

    def _is_sudden(self, surprise: float) -> bool:
        """Whether the last batch alone proves a change of the job, by its surprise.

        A single batch proves nothing within 12 batches after the previous change.
        """
        is_alone = self._batches - self._changed_at > _REMEMBERED
        return is_alone and abs(surprise) - _SLACK > _CHANGE

    def _was_late(self, late_s: float, count: float, noise: float) -> bool:
        """Whether this late batch and the late batches just before it prove a higher fixed cost.

        They do if a change was detected at each of these batches, and each is smaller than the
        batch before. Three batches are needed, or two if this batch is late by more than the
        interval.
        """
        if late_s <= max(_LATE, 3 * noise) * self._interval_s:
            self._late = []
            return False
        last_at, last_count = self._late[-1] if self._late else (-_SOON, math.inf)
        if self._batches - last_at > _SOON or count > _SMALLER * last_count:
            self._late = []
        self._late.append((self._batches, count))
        return len(self._late) >= (2 if late_s > self._interval_s else 3)

    def _contradicts(self, late_s: float, count: float, time_s: float, noise: float) -> bool:
        """Whether the last two changes show that more than the cost of a record has changed.

        This is so if the changes are close together, the batch at one change was late and the batch
        at the other change was early, and the batches differ much less in time than in records.
        """
        before, self._change = self._change, (late_s, count, time_s)
        if before is None or self._batches - self._changed_at > _SOON:
            return False
        least_s = max(_LATE, 3 * noise) * self._interval_s
        is_opposite = before[0] * late_s < 0 and min(abs(before[0]), abs(late_s)) > least_s
        by_records, by_time = (
            abs(math.log(a / b)) for a, b in zip(before[1:], (count, time_s), strict=True)
        )
        return is_opposite and by_time < by_records / 2

    def _relearnt(self, cost: BatchCost, batches: int, fixed_within_s: float) -> BatchCost:
        """Return the model after a change of the job, learned again from the last ``batches``.

        The fixed cost keeps its value, with a standard deviation of at least ``fixed_within_s``.
        """
        recent = list(self._recent)[-batches:]
        cost = cost.forgotten(*recent[-1], fixed_within_s)
        for records, time_s in recent:
            cost = cost.updated(records, time_s, self._interval_s, self._least_s)
        return cost

    @property
    def _least_s(self) -> float:
        """Lower bound of the fixed cost: the least overhead of the last 12 batches (s)."""
        return min(self._overheads_s)

    def records(self, least_per_s: Mapping[str, float]) -> dict[str, float]:
        """Return the planned number of records of each source in the next batch.

        Args:
            least_per_s: The smallest rate of each source (records/s). Each source gets at least
                this rate times the interval.

        Returns:
            An empty dict while no cost is known.
        """
        cost, last = self.cost, self._last
        if cost is None or last is None:
            return {}
        parts = self._parts(cost, last)
        direction = {
            name: part / cost.record_s[place] for place, (name, part) in enumerate(parts.items())
        }
        times = cost.most(direction, self._should_s(cost))
        self._turn = not self._turn
        counts = {}
        for name, ratio in direction.items():
            least = least_per_s.get(name, 0.0) * self._interval_s
            wanted = min(times * ratio, self._most(cost, name))
            if wanted < 2 * least and self._is_to_probe(cost, last, name, least):
                wanted = 2 * least
            counts[name] = max(wanted, least)
        return counts

    def _should_s(self, cost: BatchCost) -> float:
        """Return the planned time of a batch (s): the interval, or more for a large fixed cost."""
        # While the fixed cost is uncertain, longer batches would seem to confirm a wrong value.
        is_sure = cost.is_sure_of_fixed(self._interval_s)
        return max(self._interval_s, cost.fixed_s / MOST_FIXED if is_sure else 0.0)

    def _most(self, cost: BatchCost, name: str) -> float:
        if name not in self._largest:
            return math.inf
        largest = self._largest[name]
        most_s = self._should_s(cost) * (1.0 if self._bend.is_near else _MOST_LATE)
        growth = most_s / cost.expected_s({name: largest})
        return largest * min(max(growth, _LEAST_GROWTH), _MOST_GROWTH)

    def _is_to_probe(self, cost: BatchCost, last: FinishedBatch, name: str, least: float) -> bool:
        """Whether the next batch must be larger, to find out if the fixed cost is too large."""
        is_sure = cost.is_sure_of_fixed(self._interval_s) and self._upper_bound_s is None
        counts = [sum(records.values()) for records, _ in self._recent]
        is_known = is_sure and bool(counts) and max(counts) >= _TELLING * min(counts)
        return not is_known and last.records.get(name, 0) < 1.9 * least

    def _parts(self, cost: BatchCost, last: FinishedBatch) -> dict[str, float]:
        """Return each source's fraction of a batch's time for records, in the model's order."""
        names, work_s = cost.sources, max(self._interval_s - cost.fixed_s, 0.01 * self._interval_s)
        wanted = {
            name: math.inf
            if name in last.behind
            else max(2 * each_s * last.records.get(name, 0) / work_s, _LEAST_PART)
            for name, each_s in zip(names, cost.record_s, strict=True)
        }
        parts, left, open_ = dict[str, float](), 1.0, sorted(names, key=lambda n: wanted[n])
        for place, name in enumerate(open_):
            parts[name] = min(wanted[name], left / (len(open_) - place))
            left -= parts[name]
        total = sum(parts.values())
        tilted = len(names) > 1 and any(cost.is_vague(name) for name in names)
        return {
            name: parts[name] / total * (1 + self._tilt(place) if tilted else 1)
            for place, name in enumerate(names)
        }

    def _tilt(self, place: int) -> float:
        return _TILT if (place % 2 == 0) is self._turn else -_TILT


class _GateLearned:
    """The law ``learned`` of one gate. `LearnedBatches` learns the costs, for all laws."""

    def __init__(self, _options: Options, min_rate: float, _interval_ms: int) -> None:
        self._min_rate = min_rate

    def batch(self, part: FinishedPart, rate_in_force: float | None) -> float | None:
        """Return the rate at which a batch takes one interval; None while the costs are unknown."""
        del rate_in_force
        return None if part.filling_per_s is None else max(part.filling_per_s, self._min_rate)

    def terms(self) -> LawTerms:
        """Return `NO_TERMS`, because this law has no PID terms."""
        return NO_TERMS


LEARNED: Final = Law("learned", _GateLearned, fills_interval=True)
