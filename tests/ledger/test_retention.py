"""How far gates are through: nothing that one of them may still read is below it."""

import itertools

from hypothesis import HealthCheck, given, settings
from tests.ledger.readers import ERROR, LANES, Readers, Step, steps

from headrace.core.ranges import OffsetRange
from headrace.ledger import (
    DeadLetter,
    Ledger,
    LetterStatus,
    PlannedBatch,
    PlannedRange,
    Processed,
    Status,
)

NUMBERS = itertools.count()
JOURNAL = "the journal's id"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=steps())
def test_a_gate_is_through_up_to_the_first_offset_that_it_needs(
    ledger: Ledger, story: list[Step]
) -> None:
    number = next(NUMBERS)
    topic_id, names = f"journal {number}", (f"a{number}", f"b{number}")
    readers = Readers(ledger, topic_id, names)
    for step in story:
        readers.step(step)
    expected = {
        (reader.name, lane): next(o for o in itertools.count() if reader.needs(lane, o))
        for reader in readers.readers
        if reader.reads
        for lane in range(LANES)
    }
    told = ledger.processed_until(topic_id, range(LANES))
    assert {(each.gate, each.partition): each.until for each in told} == expected
    for each in told:
        batch = ledger.batch(each.schedule_id) if each.schedule_id else None
        assert each.status is (batch.status if batch else None)
        if each.schedule_id:
            starts = {
                (r.offsets.partition, r.offsets.start) for r in ledger.ranges(each.schedule_id)
            }
            assert (each.partition, each.until) in starts


def reads(
    lane: int, start: int, until: int, gate: str = "orders", run: str = "run"
) -> PlannedBatch:
    offsets = PlannedRange(OffsetRange("orders", lane, start, until), topic_id=JOURNAL)
    return PlannedBatch(gate, run, (offsets,), "rate", "")


def done(ledger: Ledger, batch: PlannedBatch) -> None:
    ledger.succeed(ledger.begin(batch).schedule_id)


def test_what_nobody_has_read_nobody_is_through_with(ledger: Ledger) -> None:
    assert ledger.processed_until(JOURNAL, [0]) == ()
    done(ledger, PlannedBatch("orders", "run", (PlannedRange(OffsetRange("o", 0, 0, 9)),), "", ""))
    assert ledger.processed_until(JOURNAL, [0]) == ()


def test_the_last_batch_may_be_asked_for_again_and_those_before_it_not(ledger: Ledger) -> None:
    for start in (5, 10, 20):
        done(ledger, reads(0, start, 2 * start))
    last = reads(0, 20, 40).schedule_id
    assert ledger.processed_until(JOURNAL, [0]) == (
        Processed("orders", 0, 20, last, Status.SUCCESS),
    )
    done(ledger, reads(1, 0, 7))
    assert ledger.processed_until(JOURNAL, [0]) == (Processed("orders", 0, 40),)


def test_a_batch_that_failed_holds_what_it_reads_until_it_is_made_good(ledger: Ledger) -> None:
    failed = ledger.begin(reads(0, 0, 10)).schedule_id
    ledger.fail(failed, ValueError("no"))
    done(ledger, reads(0, 10, 20))
    done(ledger, reads(1, 0, 10))
    (found,) = ledger.processed_until(JOURNAL, [0])
    assert found == Processed("orders", 0, 0, failed, Status.FAILED)
    ledger.take(failed, "me", 1_000)
    ledger.backfilled(failed, "me")
    assert ledger.processed_until(JOURNAL, [0]) == (Processed("orders", 0, 20),)


def test_a_dead_batch_holds_what_it_reads_until_it_is_dropped(ledger: Ledger) -> None:
    dead = ledger.begin(reads(0, 0, 10)).schedule_id
    ledger.fail(dead, ERROR)
    ledger.take(dead, "me", 1_000)
    ledger.bury(dead, "me", ERROR)
    done(ledger, reads(0, 10, 20))
    done(ledger, reads(1, 0, 10))
    assert ledger.processed_until(JOURNAL, [0]) == (Processed("orders", 0, 0, dead, Status.DEAD),)
    ledger.drop(dead, "as agreed")
    assert ledger.processed_until(JOURNAL, [0]) == (Processed("orders", 0, 20),)


def test_a_dead_letter_holds_its_record_until_it_is_resolved(ledger: Ledger) -> None:
    whole = ledger.begin(reads(0, 0, 2)).schedule_id
    ledger.attach(whole, 1, owner="me", lease_ms=1_000)
    good, bad = ledger.split(whole, [reads(0, 0, 1), reads(0, 1, 2)], "me", 1_000)
    letter = DeadLetter("orders", 0, 1, None, None, None, 0, 0, ERROR)
    ledger.bury_record(bad.schedule_id, letter)
    ledger.succeed(good.schedule_id)
    ledger.succeed(whole)
    done(ledger, reads(1, 0, 10))
    (found,) = ledger.processed_until(JOURNAL, [0])
    assert found == Processed("orders", 0, 1, bad.schedule_id, Status.DEAD)
    (kept,) = ledger.dead_letters()
    ledger.resolve(kept.dead_letter_id, LetterStatus.SENT, "to retries")
    assert ledger.processed_until(JOURNAL, [0]) == (Processed("orders", 0, 2),)


def test_each_gate_is_asked_but_those_that_are_left_out(ledger: Ledger) -> None:
    ledger.declare_gate("audit", interval_ms=1, source="journal", estimator="pid")
    done(ledger, reads(0, 0, 10))
    done(ledger, reads(0, 0, 3, gate="audit"))
    done(ledger, reads(1, 0, 3, gate="audit"))
    done(ledger, reads(1, 0, 3))
    told = ledger.processed_until(JOURNAL, [0])
    assert told == (Processed("audit", 0, 3), Processed("orders", 0, 10))
    told = ledger.processed_until(JOURNAL, [0], without=["audit"])
    assert told == (Processed("orders", 0, 10),)


def test_what_a_fresh_checkpoint_has_not_read_it_may_read_from_the_beginning(
    ledger: Ledger,
) -> None:
    done(ledger, reads(0, 0, 10))
    done(ledger, reads(1, 0, 10))
    done(ledger, reads(1, 3, 5, run="fresh"))
    done(ledger, reads(1, 5, 7, run="fresh"))
    told = ledger.processed_until(JOURNAL, [0, 1])
    assert [each.until for each in told] == [0, 5]
