"""How fast something moves that moves in chunks."""

from collections import deque


class ChunkRate:
    """Measures a rate from one chunk to another: whole chunks over the whole gaps between them.

    A batch moves a second's worth of records at once. Over a fixed window of two seconds that is
    two chunks or three; from one chunk to the one two seconds later it is two, always.

    Args:
        most_ms: How far back chunks are remembered (ms); at least two are, however old.
        silence_ms: After how long nothing has moved because nothing moves, not because the chunks
            are far apart (ms).
    """

    def __init__(self, most_ms: int, silence_ms: int) -> None:
        self._most_ms = most_ms
        self._silence_ms = silence_ms
        self._from_ms: int | None = None
        self._total: int | None = None
        self._chunks: deque[tuple[int, int]] = deque()

    def look(self, time_ms: int, total: int) -> None:
        """Take note of how much has moved so far, at a time not before the last one.

        A total below the one before (of a channel that was made anew) begins a new measurement.
        """
        if self._from_ms is None:
            self._from_ms = time_ms
        if time_ms < self._from_ms:
            return
        before, self._total = self._total, total
        if before is None or total < before:
            self._chunks.clear()
        elif total > before:
            self._chunks.append((time_ms, total))
        while len(self._chunks) > 2 and time_ms - self._chunks[1][0] >= self._most_ms:
            self._chunks.popleft()

    def restart(self, from_ms: int) -> None:
        """Forget all, and measure anew from that time on."""
        self._from_ms = from_ms
        self._total = None
        self._chunks.clear()

    def per_s(self, time_ms: int, least_ms: int) -> float | None:
        """The rate per second over the newest chunks; None while they do not span ``least_ms``.

        A silence longer than the chunks were apart counts too.
        """
        if len(self._chunks) < 2:
            since_ms = self._chunks[0][0] if self._chunks else self._from_ms
            is_silent = since_ms is not None and time_ms - since_ms >= self._silence_ms
            return 0.0 if is_silent else None
        last_ms, last_total = self._chunks[-1]
        gap_ms = (last_ms - self._chunks[0][0]) / (len(self._chunks) - 1)
        until_ms = max(float(last_ms), time_ms - gap_ms)
        for first_ms, first_total in reversed(self._chunks):
            if until_ms - first_ms >= max(least_ms, 1) and first_ms < last_ms:
                return (last_total - first_total) * 1000 / (until_ms - first_ms)
        return None
