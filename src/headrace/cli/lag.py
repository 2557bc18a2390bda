"""How the lag of a gate moves, from the lags and sizes that its batches were planned with."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from headrace.ledger import BatchRecord

WINDOW: Final = 6
"""Batches that one measurement spans: enough to even out one of an odd size, few enough to see a
job slow down within seconds."""

STEADY: Final = 0.02
"""A lag that changes by less than this part of the throughput is steady."""


class Trend(StrEnum):
    """Where a quantity goes."""

    FALLING = "falling"
    STEADY = "steady"
    RISING = "rising"


@dataclass(frozen=True, slots=True)
class LagChange:
    """What went in and out between two plans of a run.

    Attributes:
        arrival_rate_per_s: Records that came to the source.
        throughput_per_s: Records that were admitted.
        lag_change_per_s: Above 0 where the lag grows; losses make it fall too.
        lag: The lag at the later plan, before its batch.
        left_over: What that batch left of it.
    """

    arrival_rate_per_s: float
    throughput_per_s: float
    lag_change_per_s: float
    lag: int
    left_over: int

    @classmethod
    def of(cls, batches: Sequence[BatchRecord]) -> Self | None:
        """Measure over the newest batches of one run, newest first; None while there are not two.

        Where a batch was planned before a restart its lag is not known; its size is.
        """
        known = [place for place, batch in enumerate(batches[:WINDOW]) if batch.lag is not None]
        if len(known) < 2:
            return None
        newest, oldest = batches[known[0]], batches[known[-1]]
        seconds = (newest.created_time_ms - oldest.created_time_ms) / 1000
        if newest.lag is None or oldest.lag is None or seconds <= 0:
            return None
        admitted = sum(b.planned_records for b in batches[known[0] + 1 : known[-1] + 1])
        arrived = max(newest.lag - oldest.lag + admitted, 0)
        return cls(
            arrival_rate_per_s=arrived / seconds,
            throughput_per_s=admitted / seconds,
            lag_change_per_s=(newest.lag - oldest.lag) / seconds,
            lag=newest.lag,
            left_over=max(newest.lag - newest.planned_records, 0),
        )

    @property
    def lag_trend(self) -> Trend:
        """Whether the lag falls or rises, beyond what batches differ by anyway."""
        if abs(self.lag_change_per_s) <= STEADY * self.throughput_per_s:
            return Trend.STEADY
        return Trend.FALLING if self.lag_change_per_s < 0 else Trend.RISING

    @property
    def drain_s(self) -> float | None:
        """The time until nothing is left waiting, in seconds; None if it never comes at this pace.

        It is the lag over what is admitted beyond what arrives.
        """
        if self.left_over == 0:
            return 0.0
        net_per_s = self.throughput_per_s - self.arrival_rate_per_s
        return self.lag / net_per_s if net_per_s > 0 else None


def newest_run(batches: Sequence[BatchRecord]) -> list[BatchRecord]:
    """The batches of the newest batch's run: positions of other runs are not comparable."""
    return [batch for batch in batches if batch.run_id == batches[0].run_id]


def drain_trend(batches: Sequence[BatchRecord]) -> Trend | None:
    """Whether the time to drain grows, against half a window before; None if it was not known.

    Args:
        batches: Those of one run, newest first.
    """
    now, before = LagChange.of(batches), LagChange.of(batches[WINDOW // 2 :])
    if now is None or before is None:
        return None
    if now.drain_s is None or before.drain_s is None:
        return None if now.drain_s is before.drain_s else _against_never(now)
    if abs(now.drain_s - before.drain_s) <= 0.05 * before.drain_s:
        return Trend.STEADY
    return Trend.FALLING if now.drain_s < before.drain_s else Trend.RISING


def _against_never(now: LagChange) -> Trend:
    """Of two times to drain, one is endless: the one before, or the present one."""
    return Trend.RISING if now.drain_s is None else Trend.FALLING
