"""Fair shares of a stream's rate for the stream's receivers, and a token bucket for each share.

Each receiver computes all shares from the last reports of all receivers. So all receivers compute
the same shares, without messages between them. A stream's rate is R (records/s) over n receivers.
Two functions are applied in turn:

1. `fair_shares`: max-min fairness. A receiver that took records at the rate t, and has the limit l
   and the maximum m, demands::

       d = min(m, inf                                if records wait, or t >= 0.95 l
                  max(1.15 t, 0.8 l, 0.1 R / n)      else)

   The receiver gets ``min(d, level)``. The level is the value at which the shares add up to R. If R
   exceeds the sum of the demands, the remaining rate is split evenly.
2. `catch_up_rate`: if the unread records of a receiver's lane are worth b intervals of the
   receiver's share, the receiver admits less than its share::

       share * (1 - 0.5 * min(max((b - 2) / (12 - 2), 0), 1))

`TokenBucket` enforces a rate: it admits records or bytes, and returns how long the next records or
bytes must wait.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.options import require_number

_USES_UP: Final = 0.95
"""A receiver that takes at least this fraction of its limit demands a higher limit, even if no
record waits."""

_SPARE: Final = 1.15
"""A receiver demands this many times the rate at which it took records. The factor is above 1, so
that small changes of this rate do not change the shares."""

_FALL: Final = 0.8
"""A receiver demands at least this fraction of its limit. The rate at which it took records is a
mean over some seconds, so a receiver that has just begun would otherwise demand too little."""

_LEAST: Final = 0.1
"""A receiver demands at least this fraction of an even share. Without this minimum, an idle
receiver would get no share and could not begin."""

_USUAL_INTERVALS: Final = 2.0
"""While the query keeps up, a lane usually has as many unread records as arrive in this many
intervals: the interval since the last batch was planned, and the interval in which the previous
batch ran."""

_FAR_INTERVALS: Final = 12.0
"""A receiver's share is reduced the most if its lane has at least as many unread records as arrive
in this many intervals."""

_MOST_REDUCED: Final = 0.5
"""A receiver's share is reduced by at most this fraction. Senders need not stop while the query is
down, because the journal stores the new records. A query that was down for an hour catches up in
about two hours."""

_SHORTEST_INTERVAL_MS: Final = 1_000
"""`catch_up_rate` measures a backlog in intervals of at least this length (ms). Shares are computed
about once a second, and would swing with a shorter interval."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The rates in a receiver's last report, from which its demand is computed.

    Attributes:
        limit_per_s: The rate limit that the receiver enforced (records/s).
        taken_per_s: The mean rate of records that the receiver took in the last seconds
            (records/s).
        waits: Whether records waited because of the limit.
        most_per_s: The receiver's configured maximum rate, whatever its share is (records/s); None
            for no maximum.
    """

    limit_per_s: float
    taken_per_s: float
    waits: bool
    most_per_s: float | None = None

    def wanted_per_s(self, even_per_s: float) -> float:
        """Return the rate that the receiver demands (records/s).

        The demand is infinite if the limit slows the receiver down and ``most_per_s`` is None.

        Args:
            even_per_s: The stream's rate divided by the number of receivers (records/s).
        """
        if self.waits or self.taken_per_s >= _USES_UP * self.limit_per_s:
            wanted_per_s = math.inf
        else:
            wanted_per_s = max(
                _SPARE * self.taken_per_s, _FALL * self.limit_per_s, _LEAST * even_per_s
            )
        return wanted_per_s if self.most_per_s is None else min(wanted_per_s, self.most_per_s)


def fair_shares(rate_per_s: float, demands: Sequence[Demand]) -> list[float]:
    """Split a rate among receivers. Return their shares (records/s), in the order of ``demands``.

    The shares add up to the rate. No receiver gets more than its demand while another receiver gets
    less than it demands. A receiver that demands an even share or more gets at least an even share.
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
    """Return the rate that a receiver admits while its lane has a backlog (records/s).

    The rate is the receiver's share, reduced by up to half. The query reads at its full rate, so it
    catches up. The records of two intervals are usual; the rest of the backlog shrinks by about a
    twentieth in each interval.

    Args:
        share_per_s: The receiver's share of the stream's rate (records/s); above 0.
        backlog: Number of records in the receiver's lane that the query has not begun to read.
        interval_ms: The query's interval (ms). Less than 1000 counts as 1000.
    """
    interval_s = max(interval_ms, _SHORTEST_INTERVAL_MS) / 1000
    behind = backlog / (share_per_s * interval_s)
    far = (behind - _USUAL_INTERVALS) / (_FAR_INTERVALS - _USUAL_INTERVALS)
    return share_per_s * (1 - _MOST_REDUCED * min(max(far, 0.0), 1.0))


_IN_TIME_S: Final = 1e-6
"""A delay of at most this many seconds counts as 0, because a caller's clock may round the delay
down. Tokens that are taken early become a debt, so the rate stays the same."""


class TokenBucket:
    """A rate limiter that admits tokens at a fixed rate, and at most one more burst after a pause.

    With r = ``rate_per_s``, b = ``burst_s`` and n tokens wanted after ``t`` seconds::

        level  = min(level + r * t, r * b)             full at first
        delay  = (min(n, r * b) - level) / r           0 if below 0
        taken:   level - n                             below 0, a debt

    So in any t seconds at most ``r * (t + b)`` tokens are taken. A single call that takes more than
    the capacity raises this bound by the difference. A caller that waits for each delay gets tokens
    at a rate of at least r.

    Each method takes the current time as an argument, in seconds of any clock. If a time is earlier
    than the time of the last call, the time of the last call counts. A bucket is not safe for use
    by several threads at once. ::

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
        burst_s: Capacity of the bucket, in seconds' worth of tokens; a finite number above 0.
            Default: 1. Too large: many tokens pass at once after each pause. Too small: tokens are
            lost whenever a caller is a little late.

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
        """The current rate of the bucket (tokens/s)."""
        return self._rate_per_s

    @property
    def capacity(self) -> float:
        """The number of tokens in a full bucket: the rate times ``burst_s``."""
        return self._rate_per_s * self._burst_s

    def level(self, now_s: float) -> float:
        """Return the number of tokens in the bucket; a debt is a negative number."""
        self._gain(now_s)
        return self._level

    def delay_s(self, tokens: float, now_s: float) -> float:
        """Return the time until the tokens can be taken (s); 0.0 if they can be taken now.

        The result is valid until the rate changes or another caller takes tokens.
        """
        missing = min(tokens, self.capacity) - self.level(now_s)
        delay_s = missing / self._rate_per_s
        return delay_s if delay_s > _IN_TIME_S else 0.0

    def try_take(self, tokens: float, now_s: float) -> bool:
        """Take the tokens if `delay_s` is 0.0 for them. Return whether they were taken."""
        if self.delay_s(tokens, now_s) > 0:
            return False
        self._level -= tokens
        return True

    def set_rate(self, rate_per_s: float, now_s: float) -> None:
        """Set the rate from ``now_s`` on. Tokens above the new capacity are lost; a debt stays.

        Raises:
            OptionError: The rate is not a finite number above 0. The old rate then stays in force.
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
