"""The token bucket: how many records or bytes may go through now, and when the next ones may."""

from typing import Final

from headrace.core.options import require_number

_IN_TIME_S: Final = 1e-6
"""A caller this much too early is in time: its clock may round away a part of the delay. The early
tokens are owed, so the rate stays what it is."""


class TokenBucket:
    """Lets through a rate, and after a pause at most one burst on top of it.

    With r = ``rate_per_s``, b = ``burst_s`` and n tokens wanted after ``t`` seconds::

        level  = min(level + r * t, r * b)             full at first
        delay  = (min(n, r * b) - level) / r           0 if below 0
        taken:   level - n                             below 0, a debt

    So in any t seconds at most ``r * (t + b)`` tokens are taken, plus what the largest take exceeds
    a full bucket by; and a caller that always waits takes no less than r.

    Time is an argument, in seconds from any one beginning; a time before the last one counts as
    the last one. Not safe for several threads at once. ::

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
        """Return the level of the bucket (tokens); below 0, its debt."""
        self._gain(now_s)
        return self._level

    def delay_s(self, tokens: float, now_s: float) -> float:
        """Return the wait for so many tokens (s); 0.0 if they can be taken now.

        It holds until the rate is changed or another caller takes tokens.
        """
        missing = min(tokens, self.capacity) - self.level(now_s)
        delay_s = missing / self._rate_per_s
        return delay_s if delay_s > _IN_TIME_S else 0.0

    def try_take(self, tokens: float, now_s: float) -> bool:
        """Take so many tokens, 0 or more, if `delay_s` is 0.0; answers whether they were taken."""
        if self.delay_s(tokens, now_s) > 0:
            return False
        self._level -= tokens
        return True

    def set_rate(self, rate_per_s: float, now_s: float) -> None:
        """Change the rate from now on; tokens that no longer fit are gone, a debt stays.

        Raises:
            OptionError: It is not a finite number above 0; the rate in force stays in force.
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
