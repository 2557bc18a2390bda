"""Batches that were split: their parts move along the same arrows."""

from dataclasses import replace

import pytest
from tests.ledger.samples import ManualClock, a_batch, batch_number

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.ledger import BatchRecord, ErrorReport, Kind, Ledger, PlannedBatch, Status

ERROR = ErrorReport("ValueError", "no", "")
LEASE_MS = 30_000
HALVES = (
    a_batch(OffsetRange("orders", 0, 10, 15)),
    a_batch(OffsetRange("orders", 0, 15, 20)),
)


def one_of_mine(ledger: Ledger, batch: PlannedBatch | None = None) -> BatchRecord:
    begun = ledger.begin(batch or a_batch())
    ledger.attach(begun.schedule_id, 7, owner="me", lease_ms=LEASE_MS)
    return begun


def test_arrow_a_writes_the_parts_down_right_after_their_parent(
    ledger: Ledger, clock: ManualClock
) -> None:
    whole = one_of_mine(ledger, replace(a_batch(), kind=Kind.BACKFILL))
    clock.now_ms += 60
    parts = ledger.split(whole.schedule_id, HALVES, "me", LEASE_MS)
    assert [part.schedule_id for part in parts] == [half.schedule_id for half in HALVES]
    for number, part in enumerate(parts):
        assert part == replace(
            whole,
            schedule_id=HALVES[number].schedule_id,
            planned_records=5,
            created_time_ms=whole.created_time_ms + 1 + number,
            owner="me",
            lease_until_ms=clock() + LEASE_MS,
            parent=whole.schedule_id,
        )
        assert ledger.ranges(part.schedule_id) == HALVES[number].ranges
    assert ledger.parts(whole.schedule_id) == parts
    assert ledger.parts(parts[0].schedule_id) == ()
    stored = ledger.batch(whole.schedule_id)
    assert stored is not None
    assert (stored.status, stored.lease_until_ms) == (Status.IN_PROGRESS, clock() + LEASE_MS)


def test_parts_that_a_backfill_plans_are_of_its_kind(ledger: Ledger, clock: ManualClock) -> None:
    whole = one_of_mine(ledger)
    ledger.fail(whole.schedule_id, ERROR)
    ledger.take(whole.schedule_id, "backfill", LEASE_MS)
    parts = ledger.split(whole.schedule_id, HALVES, "backfill", LEASE_MS)
    assert {part.kind for part in parts} == {Kind.BACKFILL}
    assert set(ledger.batches(kind=Kind.BACKFILL)) == set(parts)
    clock.now_ms += LEASE_MS
    left = [part.schedule_id for part in parts]
    assert ledger.settle("orders", but=None, unowned_before_ms=0) == left
    assert {part.status for part in ledger.parts(whole.schedule_id)} == {Status.FAILED}


def test_a_part_is_split_like_a_batch(ledger: Ledger) -> None:
    whole = one_of_mine(ledger)
    first, _ = ledger.split(whole.schedule_id, HALVES, "me", LEASE_MS)
    smaller = (
        a_batch(OffsetRange("orders", 0, 10, 11)),
        a_batch(OffsetRange("orders", 0, 11, 15)),
    )
    parts = ledger.split(first.schedule_id, smaller, "me", LEASE_MS)
    assert [part.parent for part in parts] == [first.schedule_id] * 2
    assert ledger.parts(first.schedule_id) == parts


def test_arrows_b_and_c_take_parts_up_again_and_what_is_done_stays_done(
    ledger: Ledger, clock: ManualClock
) -> None:
    whole = one_of_mine(ledger)
    fifths = [
        a_batch(OffsetRange("orders", 0, start, until))
        for start, until in ((10, 12), (12, 14), (14, 16), (16, 18), (18, 20))
    ]
    done, failed, open_, taken, theirs = ledger.split(whole.schedule_id, fifths, "me", LEASE_MS)
    ledger.succeed(done.schedule_id)
    ledger.fail(failed.schedule_id, ERROR)
    ledger.fail(taken.schedule_id, ERROR)
    ledger.take(taken.schedule_id, "backfill", LEASE_MS)
    clock.now_ms += LEASE_MS
    ledger.attach(theirs.schedule_id, 7, owner="theirs", lease_ms=LEASE_MS)
    ledger.begin(a_batch())
    attached = ledger.attach(whole.schedule_id, 7, owner="restarted", lease_ms=LEASE_MS)
    assert attached is not None
    assert attached.was_split
    again = ledger.split(whole.schedule_id, fifths, "restarted", LEASE_MS)
    assert [(part.status, part.owner, part.attempts, part.cut_short) for part in again] == [
        (Status.SUCCESS, None, 1, False),
        (Status.IN_PROGRESS, "restarted", 2, False),
        (Status.IN_PROGRESS, "restarted", 2, True),
        (Status.BACKFILLING, "backfill", 1, False),
        (Status.IN_PROGRESS, "theirs", 1, False),
    ]
    assert again[1].error is None
    assert again[2].created_time_ms == open_.created_time_ms
    assert len(ledger.parts(whole.schedule_id)) == 5


def test_only_its_owner_splits_a_batch(ledger: Ledger) -> None:
    whole = one_of_mine(ledger)
    with pytest.raises(LedgerError, match="does not belong to 'other', so it is not split"):
        ledger.split(whole.schedule_id, HALVES, "other", LEASE_MS)
    ledger.fail(whole.schedule_id, ERROR)
    with pytest.raises(LedgerError, match="does not belong to 'me'"):
        ledger.split(whole.schedule_id, HALVES, "me", LEASE_MS)
    assert ledger.parts(whole.schedule_id) == ()


@pytest.mark.parametrize(
    "parts",
    [
        (),
        HALVES[:1],
        (a_batch(),),
        (HALVES[0], a_batch(OffsetRange("orders", 0, 15, 19))),
        (*HALVES, a_batch(OffsetRange("orders", 0, 20, 20))),
        (HALVES[0], replace(HALVES[1], run_id="other")),
        (HALVES[0], replace(HALVES[1], gate="clicks")),
    ],
)
def test_parts_that_do_not_share_the_batchs_offsets_are_refused(
    ledger: Ledger, parts: tuple[PlannedBatch, ...]
) -> None:
    whole = one_of_mine(ledger)
    with pytest.raises(LedgerError, match="has 10 offsets and cannot be split into parts of"):
        ledger.split(whole.schedule_id, parts, "me", LEASE_MS)
    assert ledger.parts(whole.schedule_id) == ()


def test_parts_are_not_the_streams_open_batch_or_begun(ledger: Ledger) -> None:
    whole = one_of_mine(ledger)
    parts = ledger.split(whole.schedule_id, HALVES, "me", LEASE_MS)
    begun, open_batch = ledger.last_begun("orders"), ledger.open_batch("orders")
    assert begun is not None
    assert open_batch is not None
    assert begun[1].schedule_id == open_batch.schedule_id == whole.schedule_id
    assert [batch.schedule_id for batch in ledger.batches("orders", parts=False)] == [
        whole.schedule_id
    ]
    ledger.succeed(whole.schedule_id)
    assert ledger.open_batch("orders") is None
    assert ledger.begin(batch_number(9)).created_time_ms > parts[-1].created_time_ms


def test_arrow_e_settles_parts_too_and_they_are_backfilled(
    ledger: Ledger, clock: ManualClock
) -> None:
    whole = one_of_mine(ledger)
    parts = ledger.split(whole.schedule_id, HALVES, "me", LEASE_MS)
    ledger.succeed(whole.schedule_id)
    clock.now_ms += LEASE_MS
    keys = [part.schedule_id for part in parts]
    assert ledger.settle("orders", but=None, unowned_before_ms=0) == keys
    assert [batch.schedule_id for batch in ledger.failed("orders")] == keys
    for key in keys:
        assert ledger.take(key, "backfill", LEASE_MS)
        assert ledger.backfilled(key, "backfill")
    assert {part.status for part in ledger.parts(whole.schedule_id)} == {Status.SUCCESS}


def test_batches_are_filtered_by_gate_status_time_and_kind(
    ledger: Ledger, clock: ManualClock
) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    created = []
    for number in range(6):
        clock.now_ms += 10
        planned = batch_number(number, gate=("orders", "clicks")[number % 2])
        kind = Kind.BACKFILL if number == 4 else Kind.LIVE
        created.append(ledger.begin(replace(planned, kind=kind)))
    ledger.succeed(created[0].schedule_id)
    ledger.fail(created[1].schedule_id, ERROR)
    ledger.fail(created[2].schedule_id, ERROR)
    numbers = {batch.schedule_id: number for number, batch in enumerate(created)}

    def found(batches: tuple[BatchRecord, ...]) -> list[int]:
        return [numbers[batch.schedule_id] for batch in batches]

    assert found(ledger.batches()) == [5, 4, 3, 2, 1, 0]
    assert found(ledger.batches(limit=2)) == [5, 4]
    assert found(ledger.batches("orders")) == [4, 2, 0]
    assert found(ledger.batches(statuses=[Status.FAILED])) == [2, 1]
    assert found(ledger.batches(statuses=[Status.FAILED, Status.SUCCESS], limit=2)) == [2, 1]
    assert found(ledger.batches("orders", statuses=[Status.FAILED, Status.SUCCESS])) == [2, 0]
    assert found(ledger.batches(kind=Kind.BACKFILL)) == [4]
    since_ms, until_ms = created[1].created_time_ms, created[3].created_time_ms
    assert found(ledger.batches(since_ms=since_ms)) == [5, 4, 3, 2, 1]
    assert found(ledger.batches(since_ms=since_ms, until_ms=until_ms)) == [2, 1]
    assert found(ledger.batches("nobody's")) == []
