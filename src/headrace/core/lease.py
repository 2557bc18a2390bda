"""Leases: how long a batch or a gate belongs to an owner that gives no sign of life."""

from typing import Final

LEASE_MS: Final = 30_000
"""How long a batch belongs to whoever runs it (ms), unless the lease is renewed."""

GATE_LEASE_MS: Final = 30_000
"""How long a gate belongs to a query (ms), unless the lease is renewed: longer than a stall of a
planner or a failover of the ledger's database, and short enough to wait for after a machine was
lost."""

LONGEST_LEASE_MS: Final = 60_000
"""The longest lease (ms). One that ends later than this from now was written before the database's
clock was set back: it has run out, lest its batch wait for as long as the clock was wrong. Twice as
long as the leases in use, so that a clock that is set back by less than half a minute takes no
batch from an owner that is alive."""


def is_in_force(lease_until_ms: int, now_ms: int) -> bool:
    """Whether a lease is in force at a time of the database's clock (ms since the epoch).

    >>> [is_in_force(until_ms, now_ms=1_000) for until_ms in (1_000, 1_001, 61_000, 61_001)]
    [False, True, True, False]
    """
    return now_ms < lease_until_ms <= now_ms + LONGEST_LEASE_MS
