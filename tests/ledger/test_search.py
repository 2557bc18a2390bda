import pytest
from tests.ledger.samples import a_batch, batch_number

from headgate.control.ranges import OffsetRange
from headgate.ledger import DeadLetter, ErrorReport, Ledger

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
