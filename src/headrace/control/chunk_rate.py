"""The rate of what moves in chunks, measured at looks that are as rare as the chunks, or rarer."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What came after one look and not after the next, and what had come with it."""

    unseen_ms: int
    seen_ms: int
    total: int


class ChunkRate:
    """Measures a rate from one chunk to another: whole chunks over the whole gaps between them.

    A batch moves a second's worth of records at once. A fixed window of two seconds has two chunks
    or three; from one chunk to the one two seconds later it is always two.

    A chunk came at some time between two looks. Where looks are as rare as chunks, the gap between
    two of them may seem half or twice as long as it was; over more of them that matters less.

    Args:
        most_ms: How far back chunks are remembered (ms); at least two are, however old.
        silence_ms: The time without chunks after which nothing moves (ms).
    """

    def __init__(self, most_ms: int, silence_ms: int) -> None:
        self._most_ms = most_ms
        self._silence_ms = silence_ms
        self._from_ms: int | None = None
        self._looked_ms = 0
        self._total: int | None = None
        self._chunks: deque[_Chunk] = deque()

    def look(self, time_ms: int, total: int) -> None:
        """Record how much has moved so far, at a time not before the last one.

        A total below the one before (of a channel that was recreated) starts a new measurement.
        """
        if self._from_ms is None:
            self._from_ms = time_ms
        if time_ms < self._from_ms:
            return
        before, self._total = self._total, total
        if before is None or total < before:
            self._chunks.clear()
        elif total > before:
            self._chunks.append(_Chunk(self._looked_ms, time_ms, total))
        self._looked_ms = time_ms
        while len(self._chunks) > 2 and time_ms - self._chunks[1].seen_ms >= self._most_ms:
            self._chunks.popleft()

    def restart(self, from_ms: int) -> None:
        """Forget all, and measure from that time on."""
        self._from_ms = from_ms
        self._total = None
        self._chunks.clear()

    def per_s(self, time_ms: int, least_ms: int, exact: float = 0.0) -> float | None:
        """The rate per second over the newest chunks; None while they do not suffice.

        A silence longer than the mean gap of the chunks counts too.

        Args:
            time_ms: Now.
            least_ms: The time that the chunks must span (ms).
            exact: The least part of the highest rate possible, given that each chunk came between
                two looks, that the lowest must be: 0 (any, for looks at the very moment) to 1.
        """
        if len(self._chunks) < 2:
            since_ms = self._chunks[0].seen_ms if self._chunks else self._from_ms
            is_silent = since_ms is not None and time_ms - since_ms >= self._silence_ms
            return 0.0 if is_silent else None
        last = self._chunks[-1]
        gap_ms = (last.seen_ms - self._chunks[0].seen_ms) / (len(self._chunks) - 1)
        until_ms = max(float(last.seen_ms), time_ms - gap_ms)
        least_until_ms = last.unseen_ms if until_ms == last.seen_ms else until_ms
        for first in reversed(self._chunks):
            if first.seen_ms == last.seen_ms:  # two looks in one millisecond
                continue
            lasted_ms = until_ms - first.seen_ms
            is_exact = least_until_ms - first.seen_ms >= exact * (until_ms - first.unseen_ms)
            if lasted_ms >= max(least_ms, 1) and is_exact:
                return (last.total - first.total) * 1000 / lasted_ms
        return None
