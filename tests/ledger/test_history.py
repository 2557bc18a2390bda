from dataclasses import replace

import pytest
from tests.ledger.samples import ManualClock, a_batch, a_sample, batch_number

from headrace.core.ranges import OffsetRange
from headrace.ledger import (
    BatchRecord,
    Covered,
    ErrorReport,
    FindingKind,
    Ledger,
    PlannedBatch,
    Pruned,
    Status,
    Verdict,
    history,
    verify,
)

ERROR = ErrorReport("ValueError", "no", "")


def test_prune_deletes_old_successes_with_their_ranges_and_old_samples(
    ledger: Ledger, clock: ManualClock
) -> None:
    old, newer, newest = (ledger.begin(batch_number(number)) for number in range(3))
    ledger.succeed(old.schedule_id)
    clock.now_ms += 10
    ledger.succeed(newer.schedule_id)
    ledger.succeed(newest.schedule_id)
    for time_ms in (clock() - 1, clock(), clock() + 1):
        ledger.publish_rate(a_sample(time_ms))
    assert ledger.prune(clock()) == Pruned(batches=1, rates=1)
    assert ledger.batch(old.schedule_id) is None
    assert ledger.ranges(old.schedule_id) == ()
    assert {batch.schedule_id for batch in ledger.batches("orders")} == {
        newer.schedule_id,
        newest.schedule_id,
    }
    assert len(ledger.ranges(newer.schedule_id)) == 1
    assert [sample.time_ms for sample in ledger.rates("orders")] == [clock() + 1, clock()]


def test_prune_never_touches_what_is_not_processed(ledger: Ledger, clock: ManualClock) -> None:
    begun, failed, succeeded, newest = (ledger.begin(batch_number(number)) for number in range(4))
    ledger.fail(failed.schedule_id, ERROR)
    ledger.succeed(succeeded.schedule_id)
    assert ledger.prune(clock() + 1_000_000) == Pruned(batches=1, rates=0)
    for kept in (begun, failed, newest):
        assert ledger.batch(kept.schedule_id) is not None
        assert len(ledger.ranges(kept.schedule_id)) == 1


def test_prune_keeps_each_gates_newest_batch_for_an_engine_that_runs_it_again(
    ledger: Ledger, clock: ManualClock
) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    newest = [ledger.begin(batch_number(1, gate=gate)) for gate in ("orders", "clicks")]
    for batch in newest:
        ledger.succeed(batch.schedule_id)
    assert ledger.prune(clock() + 1_000_000) == Pruned(batches=0, rates=0)
    assert ledger.begin(batch_number(1)).attempts == 1


def test_prune_keeps_the_rate_in_force_and_the_losses(ledger: Ledger, clock: ManualClock) -> None:
    ledger.publish_rate(a_sample(clock(), 321.0))
    ledger.record_losses("orders", [batch_number(1).ranges[0].offsets])
    assert ledger.prune(clock() + 1_000_000) == Pruned(batches=0, rates=1)
    assert ledger.rate("orders") == 321.0
    assert len(ledger.losses("orders")) == 1


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_prune_deletes_everything_old_however_few_rows_it_takes_at_once(
    ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(history, "ROWS_AT_ONCE", rows)
    for number in range(5):
        ledger.succeed(ledger.begin(batch_number(number)).schedule_id)
        ledger.publish_rate(a_sample(clock(), 100.0 + number))
    assert ledger.prune(clock() + 1_000_000) == Pruned(batches=4, rates=5)
    assert len(ledger.batches("orders")) == 1


def told(ledger: Ledger) -> list[tuple[str | None, int, int, Status]]:
    return [
        (each.schedule_id, each.offsets.start, each.offsets.until, each.status)
        for each in ledger.coverage("orders")
    ]


def test_the_coverage_tells_every_range_by_run_topic_partition_and_offset(ledger: Ledger) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    assert list(ledger.coverage("orders")) == []
    ledger.begin(batch_number(1, gate="clicks"))
    ranges = [
        OffsetRange("orders", 1, 5, 9),
        OffsetRange("orders", 0, 20, 30),
        OffsetRange("clicks", 2, 0, 3),
    ]
    wide = ledger.begin(a_batch(*ranges, run_id="b"))
    ledger.succeed(wide.schedule_id)
    low = ledger.begin(a_batch(OffsetRange("orders", 0, 10, 20), run_id="b"))
    first_run = ledger.begin(a_batch(OffsetRange("orders", 9, 0, 1), run_id="a"))

    def of(batch: BatchRecord, status: Status, offsets: OffsetRange) -> Covered:
        return Covered(
            run_id=batch.run_id,
            schedule_id=batch.schedule_id,
            parent=None,
            has_parts=False,
            status=status,
            offsets=offsets,
            created_time_ms=batch.created_time_ms,
        )

    assert list(ledger.coverage("orders")) == [
        of(first_run, Status.IN_PROGRESS, OffsetRange("orders", 9, 0, 1)),
        of(wide, Status.SUCCESS, ranges[2]),
        of(low, Status.IN_PROGRESS, OffsetRange("orders", 0, 10, 20)),
        of(wide, Status.SUCCESS, ranges[1]),
        of(wide, Status.SUCCESS, ranges[0]),
    ]


def test_the_coverage_keeps_what_pruned_batches_had_read_with_neighbours_as_one(
    ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "ROWS_AT_ONCE", 2)
    keys = [ledger.begin(batch_number(number)).schedule_id for number in range(7)]
    for number, key in enumerate(keys):
        if number == 3:
            ledger.fail(key, ERROR)
        else:
            ledger.succeed(key)
    clock.now_ms += 1_000
    assert ledger.prune(clock()).batches == 5
    assert told(ledger) == [
        (None, 0, 30, Status.SUCCESS),
        (keys[3], 30, 40, Status.FAILED),
        (None, 40, 60, Status.SUCCESS),
        (keys[6], 60, 70, Status.SUCCESS),
    ]
    ledger.take(keys[3], "me", 1_000)
    ledger.backfilled(keys[3], "me")
    clock.now_ms += 1_000
    assert ledger.prune(clock()).batches == 1
    assert told(ledger) == [
        (None, 0, 60, Status.SUCCESS),
        (keys[6], 60, 70, Status.SUCCESS),
    ]


def test_the_coverage_tells_a_topic_from_one_that_was_made_anew_pruned_or_not(
    ledger: Ledger, clock: ManualClock
) -> None:
    def of_topic(topic_id: str, start: int) -> PlannedBatch:
        batch = a_batch(OffsetRange("orders", 0, start, start + 10))
        (planned,) = batch.ranges
        return replace(batch, ranges=(replace(planned, topic_id=topic_id),))

    def ranges() -> list[tuple[str | None, int, int]]:
        return [
            (each.topic_id, each.offsets.start, each.offsets.until)
            for each in ledger.coverage("orders")
        ]

    for topic_id, start in [("B", 0), ("B", 10), ("A", 0), ("A", 10)]:
        ledger.succeed(ledger.begin(of_topic(topic_id, start)).schedule_id)
        clock.now_ms += 1
    assert ranges() == [("A", 0, 10), ("A", 10, 20), ("B", 0, 10), ("B", 10, 20)]
    assert ledger.prune(clock()).batches == 3
    assert ranges() == [("A", 0, 10), ("A", 10, 20), ("B", 0, 20)]


@pytest.mark.parametrize("at_once", [1, 100])
@pytest.mark.parametrize("other", [(10, 20), (5, 15), (12, 18), (0, 30)])
def test_prune_keeps_what_proves_that_two_batches_of_a_run_have_read_the_same(
    ledger: Ledger,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    other: tuple[int, int],
    at_once: int,
) -> None:
    monkeypatch.setattr(history, "ROWS_AT_ONCE", at_once)
    ledger.succeed(ledger.begin(a_batch(OffsetRange("orders", 2, 0, 5))).schedule_id)
    reads = [(0, 10), (10, 20), (20, 30)]
    for start, until in reads:
        ledger.succeed(ledger.begin(a_batch(OffsetRange("orders", 0, start, until))).schedule_id)
    beside = OffsetRange("orders", 1, 0, 5)  # which is no other batch's
    twice = ledger.begin(a_batch(OffsetRange("orders", 0, *other), beside)).schedule_id
    ledger.succeed(twice)
    ledger.succeed(ledger.begin(batch_number(3)).schedule_id)
    before = overlaps(ledger)
    assert before != set()
    for _ in range(2):
        clock.now_ms += 1_000
        ledger.prune(clock())
        assert overlaps(ledger) == before
        assert verify(ledger, "orders").verdict is Verdict.BROKEN
    assert ledger.batch(twice) is not None
    assert None in [each.schedule_id for each in ledger.coverage("orders")]


def overlaps(ledger: Ledger) -> set[int]:
    """The offsets of partition 0 that several batches have read."""
    return {
        offset
        for finding in verify(ledger, "orders").findings
        if finding.kind is FindingKind.OVERLAP
        for offset in range(finding.offsets.start, finding.offsets.until)
    }


def test_a_run_that_reads_anew_what_another_one_has_read_keeps_nothing_from_pruning(
    ledger: Ledger, clock: ManualClock
) -> None:
    for run_id in ("a", "b"):
        for number in range(2):
            offsets = OffsetRange("orders", 0, number * 10, number * 10 + 10)
            ledger.succeed(ledger.begin(a_batch(offsets, run_id=run_id)).schedule_id)
    clock.now_ms += 1_000
    assert ledger.prune(clock()).batches == 3


def test_prune_deletes_a_batch_with_its_parts_once_none_of_them_is_open(
    ledger: Ledger, clock: ManualClock
) -> None:
    def split(key: str, *ranges: tuple[int, int]) -> list[str]:
        parts = [a_batch(OffsetRange("orders", 0, *each)) for each in ranges]
        return [part.schedule_id for part in ledger.split(key, parts, "me", 1_000)]

    whole = ledger.begin(a_batch()).schedule_id
    ledger.attach(whole, 1, owner="me", lease_ms=1_000)
    low, high = split(whole, (10, 15), (15, 20))
    lowest, middle = split(low, (10, 11), (11, 15))
    for key in (whole, low, high, lowest):
        ledger.succeed(key)
    ledger.fail(middle, ERROR)
    newest = ledger.begin(batch_number(2)).schedule_id
    clock.now_ms += 1_000
    assert ledger.prune(clock()).batches == 0
    assert [(each.schedule_id, each.has_parts, each.parent) for each in coverage(ledger)] == [
        (lowest, False, low),
        (low, True, whole),
        (whole, True, None),
        (middle, False, low),
        (high, False, whole),
        (newest, False, None),
    ]
    ledger.take(middle, "me", 1_000)
    ledger.backfilled(middle, "me")
    clock.now_ms += 1_000
    assert ledger.prune(clock()).batches == 1
    assert told(ledger) == [
        (None, 10, 20, Status.SUCCESS),
        (newest, 20, 30, Status.IN_PROGRESS),
    ]


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_prune_goes_on_behind_batches_with_open_parts(
    ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(history, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(history, "_KEYS_AT_ONCE", at_once)
    keys = []
    for number in range(6):
        key = ledger.begin(batch_number(number)).schedule_id
        keys.append(key)
        if number < 4:
            ledger.attach(key, number, owner="me", lease_ms=1_000)
            start = number * 10
            halves = [OffsetRange("orders", 0, start + n, start + n + 5) for n in (0, 5)]
            low, high = ledger.split(key, [a_batch(half) for half in halves], "me", 1_000)
            ledger.succeed(low.schedule_id)
            if number % 2:
                ledger.succeed(high.schedule_id)
        ledger.succeed(key)
    clock.now_ms += 1_000
    assert ledger.prune(clock()).batches == 3
    left = [batch.schedule_id for batch in ledger.batches("orders", parts=False)]
    assert left == [keys[5], keys[2], keys[0]]
    assert all(len(ledger.parts(keys[number])) == 2 for number in (0, 2))


def coverage(ledger: Ledger) -> list[Covered]:
    """By offset; of those that begin at the same one, the shortest first."""
    return sorted(ledger.coverage("orders"), key=lambda each: each.offsets)


def test_the_right_to_read_is_enough_for_the_coverage_and_dead_letters(
    ledger: Ledger, url: str
) -> None:
    ledger.begin(batch_number(1))
    with Ledger.open(url, create=False) as reader:
        assert list(reader.coverage("orders")) == list(ledger.coverage("orders"))
        assert reader.dead_letters() == ()
        assert reader.failed() == ()


def test_a_long_history_is_told_bit_by_bit(ledger: Ledger) -> None:
    ranges = [OffsetRange("orders", partition, 0, 1) for partition in range(2_500)]
    ledger.begin(a_batch(*ranges))
    several_pages = ledger.coverage("orders")
    assert next(several_pages).offsets == ranges[0]
    ledger.declare_gate("clicks", interval_ms=1, source="kafka", estimator="pid")
    assert [each.offsets for each in several_pages] == ranges[1:]
