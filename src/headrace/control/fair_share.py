"""Share of a stream's rate that each of its receivers admits.

Each receiver computes this by itself from the last reports of all of them, so that all come to the
same shares without asking each other. Two laws follow one another, with a stream's rate R
(records/s) over n receivers:

1. `fair_shares`: max-min fairness. With taken t, limit l and maximum m, a receiver demands::

       d = min(m, inf                                if records wait, or t >= 0.95 l
                  max(1.15 t, 0.8 l, 0.1 R / n)      else)

   and gets ``min(d, level)``, with the level at which the shares add up to R. If all demands can
   be met, the rest is split evenly.
2. `catch_up_rate`: where the query is behind in a receiver's lane by b intervals' worth of its
   share, the receiver admits less::

       share * (1 - 0.5 * min(max((b - 2) / (12 - 2), 0), 1))
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_USES_UP: Final = 0.95
"""Part of its limit from which on a receiver needs more, though no record may wait now."""

_SPARE: Final = 1.15
"""A demand exceeds the taken rate by this factor, so that small changes need no other shares."""

_FALL: Final = 0.8
"""A demand falls to this part of the limit at most: the taken rate is a mean of some seconds, and
would otherwise take away the limit of a receiver that has just begun."""

_LEAST: Final = 0.1
"""The least demand, of an even share: from nothing no receiver could begin."""

_USUAL_INTERVALS: Final = 2.0
"""Intervals' worth of records that are unread at times though the query keeps up: what has come
since the last batch was planned, and while it ran."""

_FAR_INTERVALS: Final = 12.0
"""From so far behind on, the query gets the largest part of its rate to catch up."""

_MOST_REDUCED: Final = 0.5
"""Largest part of a receiver's share that is withheld. Senders need not stop because the query is
down: the journal holds the new records; and a query that falls behind for an hour has caught up in
about two."""

_SHORTEST_INTERVAL_MS: Final = 1_000
"""Shares are computed about once a second; by shorter intervals they would swing."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Last report of a receiver.

    Attributes:
        limit_per_s: Highest rate that it admitted (records/s).
        taken_per_s: Mean rate of the last seconds (records/s).
        waits: Whether records waited for the limit.
        most_per_s: Highest rate that it takes, whatever its share is (records/s); None for no
            maximum.
    """

    limit_per_s: float
    taken_per_s: float
    waits: bool
    most_per_s: float | None = None

    def wanted_per_s(self, even_per_s: float) -> float:
        """The demand, where an even share is this (records/s); infinite where the limit binds."""
        if self.waits or self.taken_per_s >= _USES_UP * self.limit_per_s:
            wanted_per_s = math.inf
        else:
            wanted_per_s = max(
                _SPARE * self.taken_per_s, _FALL * self.limit_per_s, _LEAST * even_per_s
            )
        return wanted_per_s if self.most_per_s is None else min(wanted_per_s, self.most_per_s)


def fair_shares(rate_per_s: float, demands: Sequence[Demand]) -> list[float]:
    """Split a rate among receivers (records/s), in their order; the shares add up to the rate.

    No receiver gets more than it demands while another one gets less; one that demands an even
    share or more gets at least an even share.
    """
    wants = [demand.wanted_per_s(rate_per_s / len(demands)) for demand in demands]
    left_per_s = rate_per_s
    for met, want_per_s in enumerate(sorted(wants)):
        level_per_s = left_per_s / (len(wants) - met)
        if want_per_s > level_per_s:
            return [min(want, level_per_s) for want in wants]
        left_per_s -= want_per_s
    return [want + left_per_s / len(wants) for want in wants]


def catch_up_rate(share_per_s: float, backlog: int, interval_ms: int) -> float:
    """Return the admitted part of a share (records/s), so that the query catches up in the lane.

    The query goes on at its rate, so the backlog above two intervals' worth fades by about a
    twentieth in each interval; however large it is, half of the rate is for it.

    Args:
        share_per_s: Its share of the rate (records/s); above 0.
        backlog: The records of its lane that the query has not begun to read.
        interval_ms: The query's interval (ms); less than a second counts as one.
    """
    interval_s = max(interval_ms, _SHORTEST_INTERVAL_MS) / 1000
    behind = backlog / (share_per_s * interval_s)
    far = (behind - _USUAL_INTERVALS) / (_FAR_INTERVALS - _USUAL_INTERVALS)
    return share_per_s * (1 - _MOST_REDUCED * min(max(far, 0.0), 1.0))
