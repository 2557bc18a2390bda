"""How soon a stage looks at its queue again, so that an overload is noticed when it begins."""

from collections.abc import Iterable
from typing import Final

LOOK_S: Final = 0.25
"""How often a stage looks at its queue."""

NEAR_LOOK_S: Final = 0.05
"""How often while it presses nobody and its queue is at least half of what is too long."""

LEAST_LOOK_S: Final = 0.01
"""How often at most, just before its queue is too long if it grows on as it does."""


class LookPace:
    """Looks seldom at what is far from an overload, and often at what is close to one.

    Args:
        overload_bytes: What is too much.
    """

    def __init__(self, overload_bytes: int) -> None:
        self._overload_bytes = overload_bytes
        self._look_s = LOOK_S
        self._seen: tuple[int, int] | None = None
        """When the queue was looked at last (ms), and what waited (bytes)."""

    def saw(self, time_ms: int, waiting_bytes: int, *, is_pressing: bool) -> None:
        """Take note of what waits.

        Args:
            time_ms: When, by a clock that never goes back.
            waiting_bytes: How much.
            is_pressing: Whether the stage presses another already, so that there is time.
        """
        seen, self._seen = self._seen, (time_ms, waiting_bytes)
        left_bytes = self._overload_bytes - waiting_bytes
        if left_bytes <= 0 or is_pressing:
            self._look_s = LOOK_S
            return
        self._look_s = LOOK_S if left_bytes > self._overload_bytes / 2 else NEAR_LOOK_S
        if seen is not None and seen[1] < waiting_bytes:
            grows_per_ms = (waiting_bytes - seen[1]) / max(time_ms - seen[0], 1)
            # Half of the time that is left: what is foreseen gets better on the way.
            half_s = left_bytes / grows_per_ms / 2000
            self._look_s = min(self._look_s, max(half_s, LEAST_LOOK_S))

    def next_s(self, now_ms: int, due_ms: Iterable[int | None]) -> float:
        """How long to wait before the next look (s).

        A signal is due when an overload has lasted for the time of the sensitivity; that is neither
        noticed late where it begins nor where this time is over.

        Args:
            now_ms: Now, by the same clock.
            due_ms: When the overload that was seen has lasted long enough, for each stage before;
                None where there is none.
        """
        left_ms = [due - now_ms for due in due_ms if due is not None and due > now_ms]
        return min(min(left_ms) / 1000, LOOK_S) if left_ms else self._look_s
