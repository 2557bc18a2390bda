"""Exponential backoff: how long to wait before the next try."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait after each failed try: ``min(first_ms * 2 ** (failures - 1), most_ms)``.

    >>> [Backoff().wait_ms(failures) for failures in (0, 1, 2, 8)]
    [0, 60000, 120000, 3600000]

    Attributes:
        first_ms: After the first failure (ms); 0 or more. Default: a minute. Too short, and the
            tries are used up before the cause has been repaired.
        most_ms: The longest wait (ms). Default: an hour.
    """

    first_ms: int = 60_000
    most_ms: int = 3_600_000

    def wait_ms(self, failures: int) -> int:
        """The wait after so many failures (ms)."""
        if failures <= 0:
            return 0
        return min(self.first_ms << min(failures - 1, self._doublings), self.most_ms)

    @property
    def waits_ms(self) -> tuple[int, ...]:
        """The waits after 0, 1, 2 ... failures; the last one holds for all after it, too (ms).

        >>> Backoff(first_ms=60_000, most_ms=200_000).waits_ms
        (0, 60000, 120000, 200000)
        """
        return tuple(self.wait_ms(failures) for failures in range(self._doublings + 2))

    @property
    def _doublings(self) -> int:
        """After so many the wait is the longest."""
        return (self.most_ms // max(1, self.first_ms)).bit_length()
