"""The demo counts the records that there were, and prints the numbers that it counts."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ranges import OffsetRange
from headrace.journal import Journal
from headrace.operate.cli.demo import BAD_ORDER, PARTITIONS, count_orders, open_journal

pytestmark = pytest.mark.unit


@given(st.lists(st.integers(0, 40)), st.integers(0, 40))
def test_the_count_agrees_with_a_look_at_every_number(arrived: list[int], sent: int) -> None:
    """A missing order, one that came twice, a stranger: each is found beside any other."""
    assert count_orders(arrived, sent) == {
        "sent": sent,
        "arrived": len(set(arrived)),
        "missing": sum(number not in arrived for number in range(sent)),
        "twice": len({n for n in arrived if arrived.count(n) > 1 or n >= sent}),
    }


def test_what_is_appended_is_in_the_journal(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        append, options = open_journal(cleanup, tmp_path / "orders")
        for lane in range(PARTITIONS):
            append(lane, [b"%d" % lane, BAD_ORDER])
        journal = Journal.open(options["path"])
        values = [
            bytes(value)
            for lane, (first, until) in journal.bounds().items()
            for records in journal.read(OffsetRange(journal.name, lane, first, until))
            for value in records.column("value").to_pylist()
        ]
    assert sorted(values) == [b"0", b"1", b"2", b"3", *[BAD_ORDER] * PARTITIONS]
