"""The token bucket: how many records or bytes may go through now, and when the next ones may."""

import math
from typing import Final

from headrace.errors import OptionError

_IN_TIME_S: Final = 1e-6
"""A taker this much too early is in time: whoever waits as long as it was told must not be sent
back for what its clock rounds away. What it takes early is owed, so the rate stays what it is."""


class TokenBucket:
    """Lets through a rate, and after a pause at most one burst on top of it.

    The bucket gains ``rate_per_s`` tokens a second and holds ``burst_s`` seconds' worth of them;
    it is full at first. A taker needs as many as it takes or, where that is more than a full bucket
    holds, a full bucket, which it leaves in debt. So over any time of ``t`` seconds at most
    ``rate_per_s * (t + burst_s)`` tokens are taken, and on top of that what the largest taking
    exceeded a full bucket by; and a taker that is always waiting takes no less than ``rate_per_s``.

    Time is an argument, in seconds from any one beginning; a time before the last one counts as
    the last one. No thread may call while another one does. ::

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
        burst_s: How many seconds' worth of tokens a full bucket holds; a finite number above 0, 1
            unless told otherwise. Too large, and what is let through after a pause floods whoever
            comes after; too small, and tokens are lost whenever the taker comes a little late.

    Raises:
        OptionError: An argument is out of its range.
    """

    def __init__(self, rate_per_s: float, burst_s: float = 1.0) -> None:
        _require_above_zero("rate_per_s", rate_per_s, "tokens/s")
        _require_above_zero("burst_s", burst_s, "s")
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
        """What a full bucket holds (tokens)."""
        return self._rate_per_s * self._burst_s

    def level(self, now_s: float) -> float:
        """What the bucket holds (tokens); below 0, what it owes."""
        self._gain(now_s)
        return self._level

    def delay_s(self, tokens: float, now_s: float) -> float:
        """How long a taker of so many tokens has to wait if nobody takes any before it (s).

        It holds until the rate is changed or somebody takes; who waits has to ask anew then.

        Returns:
            0.0 if they can be taken now.
        """
        missing = min(tokens, self.capacity) - self.level(now_s)
        delay_s = missing / self._rate_per_s
        return delay_s if delay_s > _IN_TIME_S else 0.0

    def try_take(self, tokens: float, now_s: float) -> bool:
        """Take so many tokens, 0 or more, if `delay_s` says that they can be taken now.

        Returns:
            Whether they were taken; otherwise the bucket is as it was.
        """
        if self.delay_s(tokens, now_s) > 0:
            return False
        self._level -= tokens
        return True

    def set_rate(self, rate_per_s: float, now_s: float) -> None:
        """Change the rate from now on; tokens that no longer fit are gone, a debt stays.

        Raises:
            OptionError: It is not a finite number above 0; the rate in force stays in force.
        """
        _require_above_zero("rate_per_s", rate_per_s, "tokens/s")
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


def _require_above_zero(name: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"{name} is {value:g} {unit}; it must be a finite number above 0.")
