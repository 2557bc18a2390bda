"""How long a failed batch waits before it is run again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait after an attempt that failed; each one is twice as long as the one before.

    >>> [Backoff().wait_ms(attempts) for attempts in (1, 2, 3, 9)]
    [0, 60000, 120000, 3600000]

    Attributes:
        first_ms: After the first backfill of a batch (ms). Too short, and the attempts are spent
            before what is broken has been repaired.
        most_ms: The longest wait (ms).
        live_attempts: How often the live stream runs a batch before it leaves it: 1, and its
            retries. After these there is no wait.
    """

    first_ms: int = 60_000
    most_ms: int = 3_600_000
    live_attempts: int = 1

    def wait_ms(self, attempts: int) -> int:
        """The wait after this many attempts (ms)."""
        backfills = attempts - self.live_attempts
        return min(self.first_ms << (backfills - 1), self.most_ms) if backfills > 0 else 0
