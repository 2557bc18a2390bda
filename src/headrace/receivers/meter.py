"""How fast a receiver takes in records."""

from collections import deque
from typing import Final

_METERED_S: Final = 5.0


class Meter:
    """How fast a count rises, over the last 5 s; shorter, and the blocks would show in it."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def rate_per_s(self, now_s: float, count: int) -> float:
        """The rate, now that the count is this; 0 at first."""
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - _METERED_S:
            self._seen.popleft()
        self._seen.append((now_s, count))
        began_s, began = self._seen[0]
        return (count - began) / (now_s - began_s) if now_s > began_s else 0.0
