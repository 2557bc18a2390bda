"""The failed batches of a gate, as the ledger has them, and those that retention nears."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gate.backfill.runners import ERROR, LEASE_MS, one_that_failed
from tests.gate.ledger.samples import batch_number

from headrace.core.backoff import Backoff
from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import LedgerError
from headrace.gate.backfill.monitor import Monitor, OpenBatch, RetentionWatch, near_retention
from headrace.gate.ledger.error_report import query_stopped
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, PlannedRange
from headrace.testing import ManualClock

HOUR_MS = 3_600_000


def keys(monitor: Monitor) -> list[str]:
    return [batch.batch_key for batch in monitor.batches()]


@pytest.fixture
def counted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The batches whose ranges were read."""
    asked: list[str] = []
    ranges: Callable[[str], tuple[PlannedRange, ...]] = ledger.batches.ranges

    def counting(batch_key: str) -> tuple[PlannedRange, ...]:
        asked.append(batch_key)
        return ranges(batch_key)

    monkeypatch.setattr(ledger.batches, "ranges", counting)
    return asked


def test_it_holds_what_failed_with_its_ranges_and_nothing_else(ledger: Ledger) -> None:
    ledger.gates.declare("clicks", interval_ms=1_000, source="kafka", estimator="pid")
    failed = [one_that_failed(ledger, batch_number(number)) for number in range(3)]
    one_that_failed(ledger, batch_number(9, gate="clicks"))
    ledger.batches.begin(batch_number(4))
    ledger.batches.succeed(ledger.batches.begin(batch_number(5)).batch_key)
    assert ledger.batches.claim(failed[1], "other", LEASE_MS)
    monitor = Monitor(ledger, "orders")
    assert keys(monitor) == []
    monitor.refresh()
    assert keys(monitor) == [failed[0], failed[2]]
    assert [r.offsets for r in monitor.batches()[1].ranges] == [OffsetRange("orders", 0, 20, 30)]


def test_a_backfill_that_does_not_renew_its_lease_leaves_its_batch_to_others(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, batch_number(0))
    taken = ledger.batches.claim(key, "other", LEASE_MS)
    assert taken is not None
    monitor = Monitor(ledger, "orders", backoff=Backoff(first_ms=1_000))
    clock.now_ms += LEASE_MS - 1
    monitor.refresh()
    assert keys(monitor) == []
    clock.now_ms += 1
    monitor.refresh()
    assert keys(monitor) == [key]
    assert monitor.next_ready(clock() + 999) is None  # it has failed, and is waited for
    assert monitor.next_ready(clock() + 1_000) is not None


def test_ranges_are_read_once_for_each_batch(ledger: Ledger, counted: list[str]) -> None:
    first = one_that_failed(ledger, batch_number(0))
    monitor = Monitor(ledger, "orders")
    monitor.refresh()
    second = one_that_failed(ledger, batch_number(1))
    monitor.refresh()
    monitor.refresh()
    assert counted == [first, second]


def test_memory_is_bounded_by_what_is_open_and_the_limit(ledger: Ledger) -> None:
    failed = [one_that_failed(ledger, batch_number(number)) for number in range(8)]
    monitor = Monitor(ledger, "orders", limit=3)
    monitor.refresh()
    assert keys(monitor) == failed[:3]
    for key in failed[:6]:
        assert ledger.batches.claim(key, "other", LEASE_MS)
        assert ledger.batches.backfilled(key, "other")
    monitor.refresh()
    assert keys(monitor) == failed[6:]


def test_however_many_fail_again_and_again_those_behind_them_have_their_turn(
    ledger: Ledger, clock: ManualClock
) -> None:
    keys_ = [one_that_failed(ledger, batch_number(number)) for number in range(9)]
    for key in keys_[:5]:
        assert ledger.batches.claim(key, "other", LEASE_MS)
        assert ledger.batches.release(key, "other", ERROR, is_dead=False)
    assert ledger.batches.claim(keys_[5], "one that crashes", LEASE_MS)
    clock.now_ms += LEASE_MS
    backoff = Backoff(first_ms=2 * LEASE_MS, most_ms=3 * LEASE_MS)
    monitor = Monitor(ledger, "orders", limit=3, backoff=backoff)
    monitor.refresh()
    assert keys(monitor) == [*keys_[:3], *keys_[6:]]
    found = monitor.next_ready(clock())
    assert found is not None
    assert found.batch_key == keys_[6]
    clock.now_ms += LEASE_MS
    monitor.refresh()
    assert keys(monitor) == keys_[:3]
    for later_ms, at_least in ((0, 5 + 3), (LEASE_MS, 9)):
        clock.now_ms += later_ms
        ready = ledger.batches.failed("orders", waits_ms=backoff.waits_ms)
        assert len(ready) == at_least


def test_what_is_forgotten_comes_back_only_if_it_is_still_failed(ledger: Ledger) -> None:
    first, second = (one_that_failed(ledger, batch_number(number)) for number in range(2))
    monitor = Monitor(ledger, "orders")
    monitor.refresh()
    monitor.forget(first)
    monitor.forget("nobody's")
    assert keys(monitor) == [second]
    monitor.refresh()
    assert keys(monitor) == [first, second]


def test_the_earliest_created_whose_wait_is_over_is_next(
    ledger: Ledger, clock: ManualClock
) -> None:
    first, second, third = (one_that_failed(ledger, batch_number(number)) for number in range(3))
    for key, failures in ((first, 2), (second, 1)):
        for _ in range(failures):
            assert ledger.batches.claim(key, "other", LEASE_MS)
            assert ledger.batches.release(key, "other", ERROR, is_dead=False)
    monitor = Monitor(ledger, "orders", backoff=Backoff(first_ms=1_000))
    monitor.refresh()

    def next_key(after_ms: int) -> str | None:
        batch = monitor.next_ready(clock() + after_ms)
        return batch.batch_key if batch else None

    assert [next_key(after) for after in (0, 999, 1_000, 1_999, 2_000)] == [
        third,
        third,
        second,
        second,
        first,
    ]


def test_it_reads_the_ledger_once_an_interval(ledger: Ledger, clock: ManualClock) -> None:
    seconds = 0.0
    monitor = Monitor(ledger, "orders", interval_ms=5_000, seconds=lambda: seconds)
    first = one_that_failed(ledger, batch_number(0))
    monitor.keep_up()
    assert keys(monitor) == [first]
    second = one_that_failed(ledger, batch_number(1))
    seconds = 4.999
    monitor.keep_up()
    assert keys(monitor) == [first]
    seconds = 5.0
    monitor.keep_up()
    assert keys(monitor) == [first, second]


def test_a_refresh_that_fails_says_so_to_who_asked_for_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = one_that_failed(ledger, batch_number(0))
    monitor = Monitor(ledger, "orders")
    monitor.refresh()

    def broken(_gate: str | None = None, _limit: int = 100) -> tuple[BatchRecord, ...]:
        raise LedgerError("The ledger cannot be reached.")

    monkeypatch.setattr(ledger.batches, "failed", broken)
    with pytest.raises(LedgerError, match="cannot be reached"):
        monitor.refresh()
    assert keys(monitor) == [key]


PARTITION = TopicPartition("orders", 0)
RANGE = OffsetRange("orders", 0, 100, 110)
offsets = st.integers(0, 10**6)


def an_open_batch(key: str, *ranges: OffsetRange) -> OpenBatch:
    return OpenBatch(key, 0, 1, 0, tuple(map(PlannedRange, ranges or (RANGE,))))


def is_near(first: int, now: int) -> bool:
    return near_retention([RANGE], {PARTITION: first}, {PARTITION: now}) == (RANGE,)


def test_retention_is_near_when_half_the_way_is_gone() -> None:
    assert [is_near(40, now) for now in (40, 69, 70, 100, 200)] == [False, False, True, True, True]


def test_where_nothing_is_deleted_nothing_is_near() -> None:
    assert not is_near(100, 100)
    assert not is_near(0, 0)


def test_a_partition_that_is_not_known_is_left_out() -> None:
    assert near_retention([RANGE], {}, {PARTITION: 100}) == ()
    assert near_retention([RANGE], {PARTITION: 0}, {}) == ()


@given(offsets, offsets, offsets)
def test_before_it_is_warned_of_less_of_the_way_is_gone_than_is_left(
    first: int, moved: int, left: int
) -> None:
    now = first + moved
    ahead = OffsetRange("orders", 0, now + left, now + left + 1)
    warned = bool(near_retention([ahead], {PARTITION: first}, {PARTITION: now}))
    assert warned == (moved > 0 and moved >= left)


def test_each_batch_is_measured_from_when_it_was_first_looked_at_and_warned_of_once() -> None:
    watch = RetentionWatch()
    early, late = an_open_batch("early"), an_open_batch("late")
    other = an_open_batch("other", OffsetRange("orders", 1, 0, 9))
    second = TopicPartition("orders", 1)
    assert watch.look([early, other], {PARTITION: 0, second: 0}) == []
    assert watch.look([early, late, other], {PARTITION: 40, second: 0}) == []
    assert watch.look([early, late, other], {PARTITION: 50, second: 0}) == [(early, (RANGE,))]
    assert watch.look([early, late, other], {PARTITION: 70, second: 0}) == [(late, (RANGE,))]
    assert watch.look([early, late, other], {PARTITION: 99, second: 0}) == []


def test_what_is_not_open_any_more_is_forgotten() -> None:
    watch = RetentionWatch()
    batch = an_open_batch("one")
    watch.look([batch], {PARTITION: 0})
    assert watch.look([batch], {PARTITION: 90}) != []
    watch.look([], {})
    assert watch.look([batch], {PARTITION: 95}) == []
    assert watch.look([batch], {PARTITION: 98}) != []


def test_a_batch_that_an_operator_asked_for_is_ready_at_once(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, batch_number(0))
    assert ledger.batches.claim(key, "me", LEASE_MS)
    ledger.batches.release(key, "me", ERROR, is_dead=False)
    monitor = Monitor(ledger, "orders", backoff=Backoff(first_ms=HOUR_MS))
    monitor.refresh()
    assert monitor.next_ready(clock()) is None
    ledger.repairs.retry("orders", [key], "ada", "the sink is back")
    monitor.refresh()
    ready = monitor.next_ready(clock())
    assert ready is not None and ready.batch_key == key


def test_an_interrupted_batch_is_the_stream_s_until_a_start_has_not_run_it(
    ledger: Ledger,
) -> None:
    failed = one_that_failed(ledger, batch_number(0))
    interrupted = ledger.batches.begin(batch_number(1)).batch_key
    ledger.batches.fail(interrupted, query_stopped(ValueError("no")))
    monitor = Monitor(ledger, "orders")
    monitor.refresh()
    assert keys(monitor) == [failed]
    ledger.batches.resolve_abandoned("orders", but="another", unowned_before_ms=0)
    monitor.refresh()
    assert keys(monitor) == [failed, interrupted]
