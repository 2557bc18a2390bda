"""Share of a stream's rate that each of its receivers admits, and a token bucket that enforces it.

Each receiver computes the shares from the last reports of all receivers, so that all come to the
same shares without communication. Two laws follow one another, with a stream's rate R (records/s)
over n receivers:

1. `fair_shares`: max-min fairness. With taken t, limit l and maximum m, a receiver demands::

       d = min(m, inf                                if records wait, or t >= 0.95 l
                  max(1.15 t, 0.8 l, 0.1 R / n)      else)

   and gets ``min(d, level)``, with the level at which the shares add up to R. If all demands can be
   met, the rest is split evenly.
2. `catch_up_rate`: if the query is behind in a receiver's lane by b intervals' worth of its share,
   the receiver admits less::

       share * (1 - 0.5 * min(max((b - 2) / (12 - 2), 0), 1))

`TokenBucket` returns the number of records or bytes that may pass now, and the delay of the next.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.options import require_number

_USES_UP: Final = 0.95
"""Fraction of its limit from which on a receiver needs more, even if no record waits now."""

_SPARE: Final = 1.15
"""Ratio of a demand to the taken rate, so that small changes need no other shares."""

_FALL: Final = 0.8
"""Least ratio of a demand to the limit: the taken rate is a mean of some seconds, and would
otherwise lower the limit of a receiver that has just begun."""

_LEAST: Final = 0.1
"""The least demand, as a fraction of an even share: a receiver without any share could not begin.
"""

_USUAL_INTERVALS: Final = 2.0
"""Intervals' worth of records that may be unread while the query keeps up: the arrivals since the
last batch was planned, and while it ran."""

_FAR_INTERVALS: Final = 12.0
"""Intervals' worth of unread records from which on the share is reduced the most."""

_MOST_REDUCED: Final = 0.5
"""Largest fraction of a receiver's share that is withheld. Senders need not stop when the query is
down, because the journal holds the new records. A query that falls behind for an hour catches up in
about two hours."""

_SHORTEST_INTERVAL_MS: Final = 1_000
"""Shortest interval for shares, which are computed about once a second; shorter ones would swing.
"""


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
        """Return the demand (records/s); infinite if the limit binds.

        ``even_per_s`` is an even share (records/s).
        """
        if self.waits or self.taken_per_s >= _USES_UP * self.limit_per_s:
            wanted_per_s = math.inf
        else:
            wanted_per_s = max(
                _SPARE * self.taken_per_s, _FALL * self.limit_per_s, _LEAST * even_per_s
            )
        return wanted_per_s if self.most_per_s is None else min(wanted_per_s, self.most_per_s)


def fair_shares(rate_per_s: float, demands: Sequence[Demand]) -> list[float]:
    """Split a rate among receivers (records/s), in their order; the shares add up to the rate.

    No receiver gets more than its demand while another one gets less. A receiver that demands an
    even share or more gets at least an even share.
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
    """Return the admitted rate of a share (records/s), so that the query catches up in the lane.

    The query keeps its rate, so the backlog above two intervals' worth shrinks by about a twentieth
    in each interval. At most half of the rate is withheld, for any backlog.

    Args:
        share_per_s: The receiver's share of the rate (records/s); above 0.
        backlog: Number of records in the receiver's lane that the query has not begun to read.
        interval_ms: The query's interval (ms); less than a second counts as one.
    """
    interval_s = max(interval_ms, _SHORTEST_INTERVAL_MS) / 1000
    behind = backlog / (share_per_s * interval_s)
    far = (behind - _USUAL_INTERVALS) / (_FAR_INTERVALS - _USUAL_INTERVALS)
    return share_per_s * (1 - _MOST_REDUCED * min(max(far, 0.0), 1.0))


_IN_TIME_S: Final = 1e-6
"""A caller this much too early is in time: its clock may round away a fraction of the delay. The
early tokens become a debt, so the rate stays the same."""


class TokenBucket:
    """Admits tokens at a rate, and after a pause at most one additional burst.

    With r = ``rate_per_s``, b = ``burst_s`` and n tokens wanted after ``t`` seconds::

        level  = min(level + r * t, r * b)             full at first
        delay  = (min(n, r * b) - level) / r           0 if below 0
        taken:   level - n                             below 0, a debt

    So in any t seconds at most ``r * (t + b)`` tokens are taken, plus the excess of the largest
    take over a full bucket. A caller that always waits takes no less than r.

    Time is an argument, in seconds from any one beginning; a time before the last one counts as the
    last one. Not safe for several threads at once. ::

        >>> bucket = TokenBucket(rate_per_s=100, burst_s=0.5)
        >>> bucket.try_take(50, now_s=0.0), bucket.try_take(10, now_s=0.0)
        (True, False)
        >>> bucket.delay_s(10, now_s=0.0)
        0.1
        >>> bucket.set_rate(1000, now_s=0.0)
        >>> bucket.delay_s(10, now_s=0.0)
        0.01

    Args:
        rate_per_s: Tokens a second; a finite number above 0.
        burst_s: Capacity of a full bucket in seconds' worth of tokens; a finite number above 0.
            Default: 1. Too large: a flood after each pause. Too small: tokens are lost whenever the
            caller comes a little late.

    Raises:
        OptionError: An argument is out of its range.
    """

    def __init__(self, rate_per_s: float, burst_s: float = 1.0) -> None:
        require_number("rate_per_s", rate_per_s, "tokens/s", above=True)
        require_number("burst_s", burst_s, "s", above=True)
        self._rate_per_s = float(rate_per_s)
        self._burst_s = float(burst_s)
        self._level = self.capacity
        self._at_s: float | None = None

    @property
    def rate_per_s(self) -> float:
        """The rate in force (tokens/s)."""
        return self._rate_per_s

    @property
    def capacity(self) -> float:
        """Capacity of the bucket (tokens)."""
        return self._rate_per_s * self._burst_s

    def level(self, now_s: float) -> float:
        """Return the level of the bucket (tokens); a debt is below 0."""
        self._gain(now_s)
        return self._level

    def delay_s(self, tokens: float, now_s: float) -> float:
        """Return the wait for the tokens (s); 0.0 if they can be taken now.

        The result holds until the rate is changed or another caller takes tokens.
        """
        missing = min(tokens, self.capacity) - self.level(now_s)
        delay_s = missing / self._rate_per_s
        return delay_s if delay_s > _IN_TIME_S else 0.0

    def try_take(self, tokens: float, now_s: float) -> bool:
        """Take 0 or more tokens, if `delay_s` is 0.0. Return whether they were taken."""
        if self.delay_s(tokens, now_s) > 0:
            return False
        self._level -= tokens
        return True

    def set_rate(self, rate_per_s: float, now_s: float) -> None:
        """Change the rate from now on; tokens above the new capacity are lost, and a debt stays.

        Raises:
            OptionError: The rate is not a finite number above 0; the rate in force stays in force.
        """
        require_number("rate_per_s", rate_per_s, "tokens/s", above=True)
        self._gain(now_s)
        self._rate_per_s = float(rate_per_s)
        self._level = min(self._level, self.capacity)

    def _gain(self, now_s: float) -> None:
        if self._at_s is None:
            self._at_s = now_s
        elif now_s > self._at_s:
            gained = (now_s - self._at_s) * self._rate_per_s
            self._level = min(self._level + gained, self.capacity)
            self._at_s = now_s
