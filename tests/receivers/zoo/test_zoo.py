"""Receivers among hostile senders: bounded memory, nothing lost, and good senders are answered.

The short form lets each kind in once; the long one prints the table of `docs/receivers.md`.
"""

import sys
from pathlib import Path

import pytest
from tests.receivers.zoo.hostile import names
from tests.receivers.zoo.observing import MIB, MOST_MEMORY_BYTES, Row, table, zoo
from tests.services.waiting import wait_until

pytestmark = pytest.mark.nightly

PROTOCOLS = ("http", "tcp", "tls", "mqtt")
UNUSED_BYTES = 128 * MIB
"""Memory that may stay once all have gone: the remembered ids, and the allocators' own."""


def problems_of(row: Row) -> list[str]:
    """Return the faults in the observations of a kind."""
    if row.peak_bytes <= MOST_MEMORY_BYTES:
        return []
    return [f"{row.copies} of {row.kind!r} take {row.peak_bytes / MIB:.0f} MiB"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_hostile_senders_take_bounded_memory_and_a_good_one_is_answered(
    protocol: str, tmp_path: Path
) -> None:
    with zoo(protocol, tmp_path) as it:
        problems = []
        for kind in names(protocol):
            problems += problems_of(it.watch(kind, 8, 0.15, 0))
        wait_until(lambda: it.memory.now_bytes() <= it.memory.idle_bytes + UNUSED_BYTES)
        assert problems + it.end() == []


@pytest.mark.soak
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_few_and_many_of_each_kind(protocol: str, tmp_path: Path) -> None:
    with zoo(protocol, tmp_path) as it:
        rows = [it.watch(kind, copies, 6, 5) for kind in names(protocol) for copies in (1, 8, 64)]
        wait_until(lambda: it.memory.now_bytes() <= it.memory.idle_bytes + UNUSED_BYTES)
        problems = [problem for row in rows for problem in problems_of(row)] + it.end()
    sys.stdout.write(f"\n{protocol}\n\n{table(rows)}\n")
    assert problems == []
