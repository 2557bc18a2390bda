"""The audits catch what is planted: a record that is missing, one that came twice, a stranger."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.demo.audit import Arrived, Finding, OffsetAudit, OrderAudit
from headrace.control import OffsetRange, TopicPartition

TP = TopicPartition("orders", 0)


def audited(*batches: list[int], produced: int) -> Finding:
    audit = OrderAudit()
    for ids in batches:
        audit.add(ids)
    return audit.finding(produced)


def test_every_order_once_passes() -> None:
    finding = audited([3, 1], [0, 4, 2], produced=5)
    assert finding == Finding(expected=5, arrived=5, missing=0, twice=0)
    assert finding.passed
    assert str(finding) == "none missing, none twice"


def test_a_missing_order_is_found_wherever_it_is() -> None:
    for missing in range(5):
        finding = audited([number for number in range(5) if number != missing], produced=5)
        assert (finding.missing, finding.passed) == (1, False)
        assert str(finding) == "1 missing, none twice"


def test_orders_that_still_wait_are_not_missing_but_any_other_is() -> None:
    audit = OrderAudit()
    audit.add([0, 1, 3])
    assert audit.finding(6, waiting=3).passed
    assert audit.finding(6, waiting=2).missing == 1


def test_an_order_that_comes_twice_is_found_even_if_another_is_missing() -> None:
    finding = audited([0, 1, 2], [2, 3], produced=5)
    assert finding.arrived == finding.expected, "the numbers alone would look right"
    assert (finding.missing, finding.twice, finding.passed) == (1, 1, False)


def test_an_order_that_was_never_sent_is_found() -> None:
    finding = audited([0, 1, 2, 7], produced=3)
    assert (finding.missing, finding.twice, finding.passed) == (0, 1, False)


def test_nothing_at_all_is_all_missing() -> None:
    assert audited(produced=3) == Finding(expected=3, arrived=0, missing=3, twice=0)


@given(st.lists(st.lists(st.integers(0, 40), max_size=20), max_size=10), st.integers(0, 40))
def test_an_audit_agrees_with_counting_every_number(
    batches: list[list[int]], produced: int
) -> None:
    times = Counter(number for batch in batches for number in batch)
    assert audited(*batches, produced=produced) == Finding(
        expected=produced,
        arrived=times.total(),
        missing=sum(number not in times for number in range(produced)),
        twice=sum(n > 1 or number >= produced for number, n in times.items()),
    )


def test_an_order_may_come_more_often_than_a_byte_can_count() -> None:
    finding = audited([0] * 300, produced=1)
    assert (finding.arrived, finding.twice) == (300, 1)


def offsets(start: int, until: int, *, records: int | None = None) -> Arrived:
    count = until - start
    return Arrived(count if records is None else records, count, start, until - 1)


def read(audit: OffsetAudit, start: int, until: int, arrived: Arrived) -> Finding:
    audit.add([OffsetRange("orders", 0, start, until)], {TP: arrived})
    return audit.finding()


def test_ranges_that_follow_one_another_pass_wherever_they_begin() -> None:
    audit = OffsetAudit()
    read(audit, 100, 110, offsets(100, 110))
    finding = read(audit, 110, 115, offsets(110, 115))
    assert finding.passed
    assert (finding.arrived, audit.offsets) == (15, 15)


def test_a_range_that_skips_offsets_is_found() -> None:
    audit = OffsetAudit()
    read(audit, 0, 10, offsets(0, 10))
    assert read(audit, 13, 20, offsets(13, 20)).missing == 3


def test_a_range_that_is_read_again_is_found() -> None:
    audit = OffsetAudit()
    read(audit, 0, 10, offsets(0, 10))
    assert read(audit, 8, 20, offsets(8, 20)).twice == 2


def test_an_offset_that_comes_twice_in_a_batch_is_found() -> None:
    assert read(OffsetAudit(), 0, 10, offsets(0, 10, records=11)).twice == 1


def test_records_from_outside_of_the_range_are_found() -> None:
    assert not read(OffsetAudit(), 0, 10, offsets(0, 11)).passed
    assert not read(OffsetAudit(), 5, 10, offsets(4, 10)).passed
    audit = OffsetAudit()
    audit.add([], {TP: offsets(0, 3)})
    assert not audit.finding().passed


def test_offsets_without_a_record_are_no_fault() -> None:
    audit = OffsetAudit()
    finding = read(audit, 0, 10, Arrived(records=4, offsets=4, first=2, last=9))
    assert finding.passed
    assert (audit.arrived, audit.offsets) == (4, 10)
