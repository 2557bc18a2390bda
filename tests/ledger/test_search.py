from typing import Any

import pytest
from tests.ledger.samples import ManualClock, a_batch, batch_number

from headrace.core.ranges import OffsetRange
from headrace.ledger import DeadLetter, ErrorReport, Ledger, NotMadeGood, Status

ERROR = ErrorReport("ValueError", "no", "")
LEASE_MS = 30_000


@pytest.mark.parametrize("digits", [1, 8, 32])
def test_batches_are_found_by_the_beginning_of_their_keys(ledger: Ledger, digits: int) -> None:
    keys = sorted(ledger.begin(batch_number(number)).schedule_id for number in range(40))
    for key in keys:
        found = [batch.schedule_id for batch in ledger.batches_named(key[:digits], limit=100)]
        assert found == [each for each in keys if each.startswith(key[:digits])]
    assert len(ledger.batches_named("", limit=2)) == 2
    assert ledger.batches_named("g") == ()


def test_failures_are_what_failed_and_is_not_made_good_earliest_first(ledger: Ledger) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    keys = [ledger.begin(batch_number(number)).schedule_id for number in range(6)]
    running, failed, taken, good, dead, lettered = keys
    elsewhere = ledger.begin(batch_number(1, gate="clicks")).schedule_id
    for key in (failed, taken, good, dead, elsewhere):
        ledger.fail(key, ERROR)
    for key in (taken, good, dead):
        ledger.take(key, "me", LEASE_MS)
    ledger.backfilled(good, "me")
    ledger.bury(dead, "me", ERROR)
    ledger.bury_record(lettered, DeadLetter("orders", 0, 50, None, b"?", None, 1, 0, ERROR))

    def found(gate: str | None = None, limit: int = 100) -> list[str]:
        return [batch.schedule_id for batch in ledger.failures(gate, limit)]

    assert running not in found()
    assert found("orders") == [failed, taken, dead]
    assert set(found()) == {failed, taken, dead, elsewhere}
    assert found("orders", limit=2) == [failed, taken]
    assert found("nobody's") == []
    assert ledger.not_made_good("orders") == NotMadeGood(failed=2, dead=1, letters=1)
    assert ledger.not_made_good("clicks") == NotMadeGood(failed=1, dead=0, letters=0)


def test_failures_are_narrowed_by_time_and_exception(ledger: Ledger, clock: ManualClock) -> None:
    began_ms, keys = clock(), []
    for number, error_class in enumerate(["ValueError", "shop.ValueError", "shop.NoValueError"]):
        key = ledger.begin(batch_number(2 * number)).schedule_id
        ledger.fail(key, ErrorReport(error_class, "no", ""))
        lettered = ledger.begin(batch_number(2 * number + 1)).schedule_id
        error = ErrorReport(error_class, "no", "")
        ledger.bury_record(lettered, DeadLetter("orders", 0, 50, None, b"?", None, 1, 0, error))
        keys.append((key, lettered))
        clock.now_ms += 1_000

    def found(
        since_s: float | None = None, until_s: float | None = None, error: str | None = None
    ) -> list[tuple[str, str]]:
        since_ms, until_ms = (
            None if after_s is None else began_ms + int(after_s * 1_000)
            for after_s in (since_s, until_s)
        )
        asked: dict[str, Any] = {"since_ms": since_ms, "until_ms": until_ms, "error_class": error}
        batches, letters = ledger.failures(**asked), ledger.dead_letters(**asked)
        assert len(batches) == len(letters)
        return [
            (batch.schedule_id, letter.schedule_id)
            for batch, letter in zip(batches, letters, strict=True)
        ]

    assert found() == keys
    assert found(since_s=0.5) == keys[1:]
    assert found(until_s=2) == keys[:2]
    assert found(0.5, 2) == keys[1:2]
    assert found(error="ValueError") == keys[:2]
    assert found(error="shop.ValueError") == keys[1:2]
    assert found(1, error="NoValueError") == keys[2:]
    assert found(error="_alueError") == []


def test_a_dead_batch_that_is_dropped_is_no_failure_any_more_and_can_be_pruned(
    ledger: Ledger, clock: ManualClock
) -> None:
    dead, other, newest = (ledger.begin(batch_number(n)).schedule_id for n in range(3))
    assert not ledger.drop(dead, "it is in progress")
    for key in (dead, other):
        ledger.fail(key, ERROR)
        ledger.take(key, "me", LEASE_MS)
        ledger.bury(key, "me", ERROR)
    assert ledger.drop(dead, "a test order")
    assert ledger.drop(dead, "a test order"), "a lost answer is given again"
    assert not ledger.drop(dead, "another reason")
    dropped = ledger.batch(dead)
    assert dropped is not None
    assert (dropped.status, dropped.resolution) == (Status.DEAD, "a test order")
    assert [batch.schedule_id for batch in ledger.failures()] == [other]
    assert ledger.not_made_good("orders") == NotMadeGood(failed=0, dead=1, letters=0)
    clock.now_ms += 10_000
    assert ledger.prune(clock()).batches == 1
    assert {batch.schedule_id for batch in ledger.batches("orders")} == {other, newest}


def test_parts_that_failed_are_failures_of_their_own(ledger: Ledger) -> None:
    whole = ledger.begin(a_batch()).schedule_id
    ledger.attach(whole, 7, owner="me", lease_ms=LEASE_MS)
    ranges = [OffsetRange("orders", 0, 10, 15), OffsetRange("orders", 0, 15, 20)]
    left, done = ledger.split(whole, [a_batch(each) for each in ranges], "me", LEASE_MS)
    ledger.fail(left.schedule_id, ERROR)
    ledger.succeed(done.schedule_id)
    ledger.succeed(whole)
    assert [batch.schedule_id for batch in ledger.failures()] == [left.schedule_id]


def test_the_right_to_read_is_enough(ledger: Ledger, url: str) -> None:
    key = ledger.begin(a_batch()).schedule_id
    ledger.fail(key, ERROR)
    with Ledger.open(url, create=False) as reader:
        assert reader.failures() == reader.batches_named(key) == ledger.failures()
