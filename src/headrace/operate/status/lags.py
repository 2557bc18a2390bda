"""Lags of gates in records and in seconds, and the time until the gates have caught up.

Only the source knows the timestamp of the oldest waiting record. The source is asked if the ledger
shows a lag of a minute or more. Commands, pages and metrics share the source's answers, so they
show the same age of the oldest record. The age in an answer is used for a minute. If the gate plans
a batch in this minute, the age is an upper bound.
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
"""Number of newest batches that are read when the lag of a gate is first computed."""

LOOK_BACK: Final = 20_000
"""To find when a gate had last read the whole log, at most this many batches are searched."""

LOOK_AGAIN_MS: Final = 60_000
"""Shortest interval between two searches of a gate's older batches in the ledger (ms)."""

WINDOW_MS: Final = 300_000
"""Time over which `Lags` measures how fast a gate's lag falls (ms)."""

KEPT_MS: Final = 60_000
"""The age of the oldest record in a source's answer is used for this time (ms), even if the gate
has planned batches since the answer."""

OLD_S: Final = 60.0
"""The source is asked for age and retention if the ledger shows a lag of at least this time (s)."""

_MOST_POINTS: Final = 2_000


@dataclass(frozen=True, slots=True)
class GateLag:
    """Lag of a gate at one moment. None stands for an unknown figure.

    Attributes:
        records: Number of records that no batch has begun. For a gate without a running query, it
            is 0 only if the source answered recently, because the ledger does not see new records.
        seconds: Age of the oldest waiting record (s), from its timestamp if the source was asked;
            else the time since the gate had last read the whole log.
        age_s: Age of the figures: time since the newest batch's plan, or since the source's answer
            (s).
        drain_s: Time until no record waits, at the pace of the last 5 minutes (s); infinite if the
            lag does not fall.
        retention_left_s: Time until the source deletes a record that no batch has begun (s).
        source_records: ``records`` as the source reported them; None if the source was not asked.
    """

    records: int | None = None
    seconds: float | None = None
    age_s: float | None = None
    drain_s: float | None = None
    retention_left_s: float | None = None
    source_records: int | None = None


@dataclass(frozen=True, slots=True)
class _Point:
    """A gate's position after a batch, and the end of the source when the batch was planned.

    Both are sums over all partitions, in offsets since the first batch of the checkpoint.
    """

    time_ms: int
    position: int
    """The gate's position after the batch."""
    latest: int
    """The end of the source when the batch was planned."""


@dataclass(slots=True)
class _Run:
    checkpoint_id: str | None
    points: deque[_Point] = field(default_factory=lambda: deque(maxlen=_MOST_POINTS))
    newest_at: tuple[int, int] | None = None
    """Two times (ms since the epoch): when the gate had last read the whole log, and when the
    ledger was searched for this time. None before the first search."""


class Lags:
    """Computes the lags of gates. Keeps the positions of each gate's batches between calls."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def of(
        self,
        ledger: Ledger,
        gates: Sequence[GateMoment],
        answers: Mapping[str, SourceAnswer],
        now_ms: int,
    ) -> dict[str, GateLag]:
        """Return the lag of each gate, by name, from the ledger and the sources' ``answers``."""
        fresh = [gate.name for gate in gates if self._is_new(gate) and lag_of(gate)]
        seeds = ledger.moments.newest_batches(fresh, SEED) if fresh else {}
        by_name = {}
        for gate in gates:
            answer = answers.get(gate.name)
            self._see(gate, seeds.get(gate.name, ((), ()))[0])
            by_name[gate.name] = self._lag(ledger, gate, answer, now_ms)
        return by_name

    def _is_new(self, gate: GateMoment) -> bool:
        run = self._runs.get(gate.name)
        return run is None or run.checkpoint_id != gate.checkpoint_id

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
            # The newer batch has the newer number of waiting records, but not their age.
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
        """Return the last time (ms) at which the gate had read the whole log; None if not known."""
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
        recent = [point for point in points if point.time_ms >= (gate.planned_ms or 0) - WINDOW_MS]
        if len(recent) < 2 or recent[-1].time_ms <= recent[0].time_ms:
            return None
        first, last = recent[0], recent[-1]
        passed_s = (last.time_ms - first.time_ms) / 1000
        net = (last.position - first.position) - (last.latest - first.latest)
        return left / (net / passed_s) if net > 0 else math.inf


class LagWatch:
    """Lags of gates, shared by all views. Methods may be called from any thread.

    A gate's source is asked if the gate has planned no batch for a while, or if its records have
    waited for a minute. Without `Sources`, the lags come from the ledger alone.
    """

    def __init__(self, sources: Sources | None = None) -> None:
        self._sources = sources
        self._lags = Lags()
        self._looking = threading.Lock()

    def answers(self) -> Mapping[str, SourceAnswer]:
        """Return the newest answer of each gate's source, by gate."""
        return {} if self._sources is None else self._sources.answers()

    def of(
        self, ledger: Ledger, gates: Sequence[GateMoment], now_ms: int, *, wait_s: float = 0
    ) -> dict[str, GateLag]:
        """Return the lag of each gate, by name.

        Wait up to ``wait_s`` seconds for sources that are asked for the first time.
        """
        with self._looking:
            lags = self._lags.of(ledger, gates, self.answers(), now_ms)
            if self._sources is None:
                return lags
            names = [gate.name for gate in gates if _knows_too_little(gate, lags, now_ms)]
            self._sources.ask(ledger, names, wait_s)
            return self._lags.of(ledger, gates, self.answers(), now_ms) if names else lags


def _knows_too_little(gate: GateMoment, lags: Mapping[str, GateLag], now_ms: int) -> bool:
    if gate.planned_ms is None:
        return False
    is_silent = now_ms - gate.planned_ms > silence_ms(gate.interval_ms)
    return is_silent or (lags[gate.name].seconds or 0) >= OLD_S


def lag_of(gate: GateMoment) -> int | None:
    """Return the number of records that the newest batch did not admit; None if not known."""
    return None if gate.lag is None else max(gate.lag - (gate.planned or 0), 0)


def may_be_more(gate: GateMoment, answer: SourceAnswer | None, now_ms: int) -> bool:
    """Whether a gate with a lag of 0 may have new records that the ledger does not see.

    This is so if no query runs and the source has not answered within `KEPT_MS`.
    """
    is_answered = answer is not None and now_ms - answer.asked_ms < KEPT_MS
    return not gate.has_query and not is_answered


def _points(gate: GateMoment, batches: Sequence[BatchRecord]) -> list[_Point]:
    """Return a point for each batch of the gate's checkpoint but the newest batch, oldest first.

    The positions are computed backwards from the gate's position after the newest batch.
    """
    own = [row for row in batches if row.checkpoint_id == gate.checkpoint_id]
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
