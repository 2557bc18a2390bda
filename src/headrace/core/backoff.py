"""Exponential backoff between retries."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double after each failure: ``min(first_ms * 2 ** (failures - 1), most_ms)``.

    >>> [Backoff().wait_ms(failures) for failures in (0, 1, 2, 8)]
    [0, 60000, 120000, 3600000]

    """

    first_ms: int = 60_000
    """Delay after the first failure (ms); 0 or more. Default: one minute. If the delay is too
    short, all attempts are made before the cause of the failure is repaired."""
    most_ms: int = 3_600_000
    """Longest delay between two attempts (ms). Default: one hour."""

    def wait_ms(self, failures: int) -> int:
        """Return the delay (ms) before the next attempt, after this number of failures."""
        if failures <= 0:
            return 0
        return min(self.first_ms << min(failures - 1, self._doublings), self.most_ms)

    @property
    def waits_ms(self) -> tuple[int, ...]:
        """Delays after 0, 1, 2 ... failures (ms). The last delay applies to all further failures.

        >>> Backoff(first_ms=60_000, most_ms=200_000).waits_ms
        (0, 60000, 120000, 200000)
        """
        return tuple(self.wait_ms(failures) for failures in range(self._doublings + 2))

    @property
    def _doublings(self) -> int:
        """Number of doublings after which ``first_ms`` exceeds ``most_ms``."""
        return (self.most_ms // max(1, self.first_ms)).bit_length()
