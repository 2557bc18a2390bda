"""Lags of gates: in records, in seconds, and how long until they have caught up.

The age of the oldest unread record by its own timestamp is known to the source alone. It is asked
where the ledger says a minute or more. Commands, pages and metrics share the answer, so that no two
of them show another age. An answer counts for a minute although batches follow: it is an upper
bound.
"""

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.gate import BatchRecord, GateMoment, Ledger
from headrace.operate.status.sources import SourceAnswer, Sources
from headrace.operate.status.states import silence_ms

SEED: Final = 12
"""Batches from which a gate is known that is seen for the first time."""

LOOK_BACK: Final = 20_000
"""Batches in which the time is looked for at which a gate's position was the newest."""

LOOK_AGAIN_MS: Final = 60_000
"""Interval at which that time is looked for, if it is before all batches seen (ms)."""

WINDOW_MS: Final = 300_000
"""The time over which the pace of a gate is measured."""

KEPT_MS: Final = 60_000
"""Time for which the source's age of the oldest record counts, though batches follow (ms)."""

OLD_S: Final = 60.0
"""From this age (s) of the oldest unread record on, its source is asked how old it is, and when it
is deleted."""

_MOST_POINTS: Final = 2_000


@dataclass(frozen=True, slots=True)
class GateLag:
    """Lag of a gate, at one moment; None for an unknown figure.

    Attributes:
        records: The records that no batch has begun yet. Of a gate without a query none is known
            to wait only where its source has answered lately: the ledger knows no 0 of it.
        seconds: How old the oldest of them is: since its timestamp where the source was asked, else
            since the last batch that found nothing behind what the gate reads next.
        age_s: How old these figures are: since the newest batch, or since the source was asked.
        drain_s: Seconds until nothing is left at the pace of the last minutes; infinite if never.
        retention_left_s: See `SourceAnswer.retention_left_s`.
        source_records: ``records`` as the source itself said; None where it was not asked.
    """

    records: int | None = None
    seconds: float | None = None
    age_s: float | None = None
    drain_s: float | None = None
    retention_left_s: float | None = None
    source_records: int | None = None


@dataclass(frozen=True, slots=True)
class _Point:
    """A gate when a batch of it was planned: offsets in all, counted from the run's first."""

    time_ms: int
    position: int
    """Behind the batch."""
    latest: int
    """Behind all that was there."""


@dataclass(slots=True)
class _Run:
    checkpoint_id: str | None
    points: deque[_Point] = field(default_factory=lambda: deque(maxlen=_MOST_POINTS))
    newest_at: tuple[int, int] | None = None
    """A position's time (ms), as the ledger's history has it, and when that was looked for."""


class Lags:
    """Measures the lags of gates; it remembers what it has seen of each."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def of(
        self,
        ledger: Ledger,
        gates: Sequence[GateMoment],
        answers: Mapping[str, SourceAnswer],
        now_ms: int,
    ) -> dict[str, GateLag]:
        """The lag of each gate, by name."""
        fresh = [gate.name for gate in gates if self._is_new(gate) and lag_of(gate)]
        seeds = ledger.moments.newest_batches(fresh, SEED) if fresh else {}
        found = {}
        for gate in gates:
            answer = answers.get(gate.name)
            self._see(gate, seeds.get(gate.name, ((), ()))[0])
            found[gate.name] = self._lag(ledger, gate, answer, now_ms)
        return found

    def _is_new(self, gate: GateMoment) -> bool:
        known = self._runs.get(gate.name)
        return known is None or known.checkpoint_id != gate.checkpoint_id

    def _see(self, gate: GateMoment, seed: Sequence[BatchRecord]) -> None:
        if self._is_new(gate):
            self._runs[gate.name] = _Run(gate.checkpoint_id)
        points = self._runs[gate.name].points
        if gate.position is None or gate.lag is None or gate.planned_ms is None:
            return
        if not points and seed:
            points.extend(_points(gate, seed))
        if not points or points[-1].time_ms < gate.planned_ms:
            planned = gate.planned or 0
            points.append(
                _Point(gate.planned_ms, gate.position, gate.position - planned + gate.lag)
            )

    def _lag(
        self, ledger: Ledger, gate: GateMoment, answer: SourceAnswer | None, now_ms: int
    ) -> GateLag:
        if gate.planned_ms is None:
            return GateLag()
        oldest_ms = None if answer is None else answer.oldest_ms
        if answer is not None and answer.asked_ms < gate.planned_ms:
            # A batch knows better since how many wait; how old they are, only the source does.
            oldest_ms = oldest_ms if now_ms - answer.asked_ms < KEPT_MS else None
            answer = None
        seen_ms = gate.planned_ms if answer is None else answer.asked_ms
        left = lag_of(gate) if answer is None else answer.lag
        if not left and may_be_more(gate, answer, now_ms):
            left = None
        return GateLag(
            records=left,
            seconds=self._seconds(ledger, gate, oldest_ms, left, now_ms),
            age_s=max(now_ms - seen_ms, 0) / 1000,
            drain_s=self._drain_s(gate, left),
            retention_left_s=None if answer is None else answer.retention_left_s(),
            source_records=None if answer is None else left,
        )

    def _seconds(
        self,
        ledger: Ledger,
        gate: GateMoment,
        since_ms: int | None,
        left: int | None,
        now_ms: int,
    ) -> float | None:
        if not left:
            return None if left is None else 0.0
        if since_ms is None:
            since_ms = self._newest_at_ms(ledger, gate, now_ms)
        return None if since_ms is None else max(now_ms - since_ms, 0) / 1000

    def _newest_at_ms(self, ledger: Ledger, gate: GateMoment, now_ms: int) -> int | None:
        """When what the gate reads next was not there yet."""
        run = self._runs[gate.name]
        position, points = gate.position, run.points
        if position is None or gate.checkpoint_id is None:
            return None
        while len(points) > 1 and points[1].latest <= position:
            points.popleft()
        if points and points[0].latest <= position:
            return points[0].time_ms
        if run.newest_at is None or now_ms - run.newest_at[1] >= LOOK_AGAIN_MS:
            found_ms = ledger.moments.newest_at_ms(gate.name, gate.checkpoint_id, LOOK_BACK)
            run.newest_at = found_ms, now_ms
        return run.newest_at[0]

    def _drain_s(self, gate: GateMoment, left: int | None) -> float | None:
        if not left:
            return None if left is None else 0.0
        if not gate.has_query:
            return None
        if gate.operator.hold is not None:
            return math.inf
        points = self._runs[gate.name].points
        recent = [each for each in points if each.time_ms >= (gate.planned_ms or 0) - WINDOW_MS]
        if len(recent) < 2 or recent[-1].time_ms <= recent[0].time_ms:
            return None
        first, last = recent[0], recent[-1]
        passed_s = (last.time_ms - first.time_ms) / 1000
        net = (last.position - first.position) - (last.latest - first.latest)
        return left / (net / passed_s) if net > 0 else math.inf


class LagWatch:
    """Lags of gates: one answer for all who look, from any thread.

    Args:
        sources: Asks the brokers or the journal, where the ledger knows too little: no batch has
            come for a while, or records have waited for a minute. None to go by the ledger alone.
    """

    def __init__(self, sources: Sources | None = None) -> None:
        self._sources = sources
        self._lags = Lags()
        self._looking = threading.Lock()

    def answers(self) -> Mapping[str, SourceAnswer]:
        """The newest answers of the sources, by gate."""
        return {} if self._sources is None else self._sources.answers()

    def of(
        self, ledger: Ledger, gates: Sequence[GateMoment], now_ms: int, *, wait_s: float = 0
    ) -> dict[str, GateLag]:
        """The lag of each gate, by name; sources that were not asked before are waited for."""
        with self._looking:
            lags = self._lags.of(ledger, gates, self.answers(), now_ms)
            if self._sources is None:
                return lags
            asked = [each.name for each in gates if _knows_too_little(each, lags, now_ms)]
            self._sources.ask(ledger, asked, wait_s)
            return self._lags.of(ledger, gates, self.answers(), now_ms) if asked else lags


def _knows_too_little(gate: GateMoment, lags: Mapping[str, GateLag], now_ms: int) -> bool:
    if gate.planned_ms is None:
        return False
    is_silent = now_ms - gate.planned_ms > silence_ms(gate.interval_ms)
    return is_silent or (lags[gate.name].seconds or 0) >= OLD_S


def lag_of(gate: GateMoment) -> int | None:
    """Return the records that the newest batch left waiting; None if that is not known."""
    return None if gate.lag is None else max(gate.lag - (gate.planned or 0), 0)


def may_be_more(gate: GateMoment, answer: SourceAnswer | None, now_ms: int) -> bool:
    """Whether a lag of 0 is a guess: no query reads, and the source has not answered lately."""
    is_answered = answer is not None and now_ms - answer.asked_ms < KEPT_MS
    return not gate.has_query and not is_answered


def _points(gate: GateMoment, batches: Sequence[BatchRecord]) -> list[_Point]:
    """The batches before the newest one, oldest first, which end where that begins."""
    own = [each for each in batches if each.checkpoint_id == gate.checkpoint_id]
    position = (gate.position or 0) - (gate.planned or 0)
    points = []
    for batch in own:
        if batch.created_time_ms >= (gate.planned_ms or 0):
            continue
        if batch.lag is None:
            break
        points.append(
            _Point(batch.created_time_ms, position, position - batch.planned_records + batch.lag)
        )
        position -= batch.planned_records
    return points[::-1]
