"""How long a failed batch waits before it is run again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait after a backfill that failed; each one is twice as long as the one before.

    >>> [Backoff().wait_ms(backfills) for backfills in (0, 1, 2, 8)]
    [0, 60000, 120000, 3600000]

    Attributes:
        first_ms: After the first backfill of a batch (ms). Too short, and the batch is dead before
            what is broken has been repaired.
        most_ms: The longest wait (ms).
    """

    first_ms: int = 60_000
    most_ms: int = 3_600_000

    def wait_ms(self, backfills: int) -> int:
        """The wait after so many backfills of a batch have failed (ms)."""
        return min(self.first_ms << (backfills - 1), self.most_ms) if backfills > 0 else 0

    @property
    def waits_ms(self) -> tuple[int, ...]:
        """The waits after 0, 1, 2 ... backfills; the last one after more than that, too (ms).

        >>> Backoff(first_ms=60_000, most_ms=200_000).waits_ms
        (0, 60000, 120000, 200000)
        """
        doublings = (self.most_ms // max(1, self.first_ms)).bit_length()
        return tuple(self.wait_ms(backfills) for backfills in range(doublings + 2))
