"""How fast bytes come in, where they come in chunks."""

from collections import deque


class Inflow:
    """Measures a rate from one arrival to another, so that whole chunks are counted over whole gaps.

    A stage writes what a batch made when the batch ends: a second's worth of records at once. Over
    a fixed window of two seconds that is two chunks or three; from one chunk to the one two seconds
    later it is two, always.

    Args:
        most_ms: How far back arrivals are remembered (ms); at least two are, however old.
    """

    def __init__(self, most_ms: int) -> None:
        self._most_ms = most_ms
        self._arrivals: deque[tuple[int, int]] = deque()
        self._from_ms: int | None = None

    def look(self, time_ms: int, total_bytes: int) -> None:
        """Take note of how much has come so far, at a time not before the last one.

        A total below the one before (a channel was made anew) begins a new measurement.
        """
        if self._from_ms is not None and time_ms < self._from_ms:
            return
        if self._arrivals and total_bytes < self._arrivals[-1][1]:
            self._arrivals.clear()
        if not self._arrivals or total_bytes > self._arrivals[-1][1]:
            self._arrivals.append((time_ms, total_bytes))
        while len(self._arrivals) > 2 and time_ms - self._arrivals[1][0] >= self._most_ms:
            self._arrivals.popleft()

    def restart(self, from_ms: int) -> None:
        """Forget all, and measure anew from that time on."""
        self._arrivals.clear()
        self._from_ms = from_ms

    def per_s(self, time_ms: int, least_ms: int) -> float | None:
        """The rate (bytes/s); None while it has not been measured for ``least_ms``.

        A silence longer than the arrivals were apart so far counts too.
        """
        if len(self._arrivals) < 2:
            return None
        (first_ms, first_bytes), (last_ms, last_bytes) = self._arrivals[0], self._arrivals[-1]
        gap_ms = (last_ms - first_ms) / (len(self._arrivals) - 1)
        measured_ms = max(float(last_ms), time_ms - gap_ms) - first_ms
        if measured_ms < least_ms or measured_ms <= 0:
            return None
        return (last_bytes - first_bytes) * 1000 / measured_ms
