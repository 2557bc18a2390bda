import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from tests.gate.ledger.readers import ERROR, LANES, Readers, Step, steps
from tests.gate.ledger.samples import a_batch, a_sample, batch_number, declare_clicks
from tests.services.examples import examples
from tests.services.ledgers import report_sample

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import FindingKind, Verdict
from headrace.gate.ledger.records import (
    BatchRecord,
    Covered,
    PlannedBatch,
    PlannedRange,
    Processed,
)
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock


def test_prune_deletes_old_successes_with_their_ranges_and_old_samples(
    ledger: Ledger, clock: ManualClock
) -> None:
    old, newer, newest = (ledger.batches.begin(batch_number(number)) for number in range(3))
    ledger.batches.succeed(old.batch_key)
    clock.now_ms += 10
    ledger.batches.succeed(newer.batch_key)
    ledger.batches.succeed(newest.batch_key)
    for time_ms in (clock() - 1, clock(), clock() + 1):
        report_sample(ledger, a_sample(time_ms))
    assert ledger.history.prune(clock()) == (1, 1)
    assert ledger.batches.get(old.batch_key) is None
    assert ledger.batches.ranges(old.batch_key) == ()
    assert {batch.batch_key for batch in ledger.batches.newest("orders")} == {
        newer.batch_key,
        newest.batch_key,
    }
    assert len(ledger.batches.ranges(newer.batch_key)) == 1
    assert [sample.time_ms for sample in ledger.rates.history("orders")] == [clock() + 1, clock()]


def test_prune_keeps_each_gates_newest_batch_for_an_engine_that_runs_it_again(
    ledger: Ledger, clock: ManualClock
) -> None:
    declare_clicks(ledger)
    newest = [ledger.batches.begin(batch_number(1, gate=gate)) for gate in ("orders", "clicks")]
    for batch in newest:
        ledger.batches.succeed(batch.batch_key)
    assert ledger.history.prune(clock() + 1_000_000) == (0, 0)
    assert ledger.batches.begin(batch_number(1)).attempts == 1


def test_prune_keeps_the_rate_in_force_and_the_losses(ledger: Ledger, clock: ManualClock) -> None:
    report_sample(ledger, a_sample(clock(), 321.0))
    ledger.history.record_losses("orders", [batch_number(1).ranges[0].offsets])
    assert ledger.history.prune(clock() + 1_000_000) == (0, 1)
    assert ledger.rates.current("orders") == 321.0
    assert len(ledger.history.losses("orders")) == 1


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_prune_deletes_everything_old_however_few_rows_it_takes_at_once(
    ledger: Ledger, clock: ManualClock, rows: int
) -> None:
    for number in range(5):
        ledger.batches.succeed(ledger.batches.begin(batch_number(number)).batch_key)
        report_sample(ledger, a_sample(clock(), 100.0 + number))
    assert ledger.history.prune(clock() + 1_000_000, rows_at_once=rows) == (4, 5)
    assert len(ledger.batches.newest("orders")) == 1


def told(ledger: Ledger) -> list[tuple[str | None, int, int, Status]]:
    return [
        (each.batch_key, each.offsets.start, each.offsets.until, each.status)
        for each in ledger.history.coverage("orders")
    ]


def test_the_coverage_has_every_range_by_run_topic_partition_and_offset(ledger: Ledger) -> None:
    declare_clicks(ledger)
    assert list(ledger.history.coverage("orders")) == []
    ledger.batches.begin(batch_number(1, gate="clicks"))
    ranges = [
        OffsetRange("orders", 1, 5, 9),
        OffsetRange("orders", 0, 20, 30),
        OffsetRange("clicks", 2, 0, 3),
    ]
    wide = ledger.batches.begin(a_batch(*ranges, checkpoint_id="b"))
    ledger.batches.succeed(wide.batch_key)
    low = ledger.batches.begin(a_batch(OffsetRange("orders", 0, 10, 20), checkpoint_id="b"))
    first_run = ledger.batches.begin(a_batch(OffsetRange("orders", 9, 0, 1), checkpoint_id="a"))

    def of(batch: BatchRecord, status: Status, offsets: OffsetRange) -> Covered:
        return Covered(
            checkpoint_id=batch.checkpoint_id,
            batch_key=batch.batch_key,
            status=status,
            offsets=offsets,
        )

    assert list(ledger.history.coverage("orders")) == [
        of(first_run, Status.IN_PROGRESS, OffsetRange("orders", 9, 0, 1)),
        of(wide, Status.SUCCESS, ranges[2]),
        of(low, Status.IN_PROGRESS, OffsetRange("orders", 0, 10, 20)),
        of(wide, Status.SUCCESS, ranges[1]),
        of(wide, Status.SUCCESS, ranges[0]),
    ]


def test_the_coverage_keeps_what_pruned_batches_had_read_with_neighbours_as_one(
    ledger: Ledger, clock: ManualClock
) -> None:
    keys = [ledger.batches.begin(batch_number(number)).batch_key for number in range(7)]
    for number, key in enumerate(keys):
        if number == 3:
            ledger.batches.fail(key, ERROR)
        else:
            ledger.batches.succeed(key)
    clock.now_ms += 1_000
    assert ledger.history.prune(clock(), rows_at_once=2)[0] == 5
    assert told(ledger) == [
        (None, 0, 30, Status.SUCCESS),
        (keys[3], 30, 40, Status.FAILED),
        (None, 40, 60, Status.SUCCESS),
        (keys[6], 60, 70, Status.SUCCESS),
    ]
    ledger.batches.claim(keys[3], "me", 1_000)
    ledger.batches.backfilled(keys[3], "me")
    clock.now_ms += 1_000
    assert ledger.history.prune(clock(), rows_at_once=2)[0] == 1
    assert told(ledger) == [
        (None, 0, 60, Status.SUCCESS),
        (keys[6], 60, 70, Status.SUCCESS),
    ]


def test_the_coverage_distinguishes_a_topic_from_one_that_was_recreated_pruned_or_not(
    ledger: Ledger, clock: ManualClock
) -> None:
    def of_topic(topic_id: str, start: int) -> PlannedBatch:
        batch = a_batch(OffsetRange("orders", 0, start, start + 10))
        (planned,) = batch.ranges
        return replace(batch, ranges=(replace(planned, topic_id=topic_id),))

    def ranges() -> list[tuple[str | None, int, int]]:
        return [
            (each.topic_id, each.offsets.start, each.offsets.until)
            for each in ledger.history.coverage("orders")
        ]

    for topic_id, start in [("B", 0), ("B", 10), ("A", 0), ("A", 10)]:
        ledger.batches.succeed(ledger.batches.begin(of_topic(topic_id, start)).batch_key)
        clock.now_ms += 1
    assert ranges() == [("A", 0, 10), ("A", 10, 20), ("B", 0, 10), ("B", 10, 20)]
    assert ledger.history.prune(clock())[0] == 3
    assert ranges() == [("A", 0, 10), ("A", 10, 20), ("B", 0, 20)]


@pytest.mark.parametrize("at_once", [1, 100])
@pytest.mark.parametrize("other", [(10, 20), (5, 15), (12, 18), (0, 30)])
def test_prune_keeps_what_proves_that_two_batches_of_a_run_have_read_the_same(
    ledger: Ledger,
    clock: ManualClock,
    other: tuple[int, int],
    at_once: int,
) -> None:
    ledger.batches.succeed(ledger.batches.begin(a_batch(OffsetRange("orders", 2, 0, 5))).batch_key)
    reads = [(0, 10), (10, 20), (20, 30)]
    for start, until in reads:
        ledger.batches.succeed(
            ledger.batches.begin(a_batch(OffsetRange("orders", 0, start, until))).batch_key
        )
    beside = OffsetRange("orders", 1, 0, 5)  # which is no other batch's
    twice = ledger.batches.begin(a_batch(OffsetRange("orders", 0, *other), beside)).batch_key
    ledger.batches.succeed(twice)
    ledger.batches.succeed(ledger.batches.begin(batch_number(3)).batch_key)
    before = overlaps(ledger)
    assert before != set()
    for _ in range(2):
        clock.now_ms += 1_000
        ledger.history.prune(clock(), rows_at_once=at_once)
        assert overlaps(ledger) == before
        assert ledger.proofs.verify("orders").verdict is Verdict.BROKEN
    assert ledger.batches.get(twice) is not None
    assert None in [each.batch_key for each in ledger.history.coverage("orders")]


def overlaps(ledger: Ledger) -> set[int]:
    """The offsets of partition 0 that several batches have read."""
    return {
        offset
        for finding in ledger.proofs.verify("orders").findings
        if finding.kind is FindingKind.OVERLAP
        for offset in range(finding.offsets.start, finding.offsets.until)
    }


def test_a_checkpoint_that_reads_again_what_another_one_has_read_keeps_nothing_from_pruning(
    ledger: Ledger, clock: ManualClock
) -> None:
    for checkpoint_id in ("a", "b"):
        for number in range(2):
            offsets = OffsetRange("orders", 0, number * 10, number * 10 + 10)
            ledger.batches.succeed(
                ledger.batches.begin(a_batch(offsets, checkpoint_id=checkpoint_id)).batch_key
            )
    clock.now_ms += 1_000
    assert ledger.history.prune(clock())[0] == 3


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_prune_goes_on_behind_batches_that_are_open(
    ledger: Ledger, clock: ManualClock, at_once: int
) -> None:
    keys = [ledger.batches.begin(batch_number(number)).batch_key for number in range(6)]
    for number, key in enumerate(keys):
        (ledger.batches.fail(key, ERROR) if number in {0, 2} else ledger.batches.succeed(key))
    clock.now_ms += 1_000
    assert ledger.history.prune(clock(), rows_at_once=at_once)[0] == 3
    left = [batch.batch_key for batch in ledger.batches.newest("orders")]
    assert left == [keys[5], keys[2], keys[0]]


def test_a_long_history_is_read_bit_by_bit(ledger: Ledger) -> None:
    ranges = [OffsetRange("orders", partition, 0, 1) for partition in range(2_500)]
    ledger.batches.begin(a_batch(*ranges))
    several_pages = ledger.history.coverage("orders")
    assert next(several_pages).offsets == ranges[0]
    ledger.gates.declare("clicks", interval_ms=1, source="kafka", estimator="pid")
    assert [each.offsets for each in several_pages] == ranges[1:]


NUMBERS = itertools.count()

JOURNAL = "the journal's id"


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    told = ledger.history.processed_until(topic_id, range(LANES))
    assert {(each.gate, each.partition): each.until for each in told} == expected
    for each in told:
        batch = ledger.batches.get(each.batch_key) if each.batch_key else None
        assert each.status is (batch.status if batch else None)
        if each.batch_key:
            starts = {
                (r.offsets.partition, r.offsets.start)
                for r in ledger.batches.ranges(each.batch_key)
            }
            assert (each.partition, each.until) in starts


def reads(
    lane: int, start: int, until: int, gate: str = "orders", run: str = "run"
) -> PlannedBatch:
    offsets = PlannedRange(OffsetRange("orders", lane, start, until), topic_id=JOURNAL)
    return PlannedBatch(gate, run, (offsets,), "rate", "")


def done(ledger: Ledger, batch: PlannedBatch) -> None:
    ledger.batches.succeed(ledger.batches.begin(batch).batch_key)


def test_what_nobody_has_read_nobody_is_through_with(ledger: Ledger) -> None:
    assert ledger.history.processed_until(JOURNAL, [0]) == ()
    done(ledger, PlannedBatch("orders", "run", (PlannedRange(OffsetRange("o", 0, 0, 9)),), "", ""))
    assert ledger.history.processed_until(JOURNAL, [0]) == ()


def test_the_last_batch_may_be_asked_for_again_and_those_before_it_not(ledger: Ledger) -> None:
    for start in (5, 10, 20):
        done(ledger, reads(0, start, 2 * start))
    last = reads(0, 20, 40).batch_key
    assert ledger.history.processed_until(JOURNAL, [0]) == (
        Processed("orders", 0, 20, last, Status.SUCCESS),
    )
    assert ledger.history.processed_until(JOURNAL, [0], keeps_last=False) == (
        Processed("orders", 0, 40),
    )
    done(ledger, reads(1, 0, 7))
    assert ledger.history.processed_until(JOURNAL, [0]) == (Processed("orders", 0, 40),)


def test_a_batch_that_failed_holds_what_it_reads_until_it_is_resolved(ledger: Ledger) -> None:
    failed = ledger.batches.begin(reads(0, 0, 10)).batch_key
    ledger.batches.fail(failed, ValueError("no"))
    done(ledger, reads(0, 10, 20))
    done(ledger, reads(1, 0, 10))
    (found,) = ledger.history.processed_until(JOURNAL, [0])
    assert found == Processed("orders", 0, 0, failed, Status.FAILED)
    ledger.batches.claim(failed, "me", 1_000)
    ledger.batches.backfilled(failed, "me")
    assert ledger.history.processed_until(JOURNAL, [0]) == (Processed("orders", 0, 20),)


def test_a_dead_batch_holds_what_it_reads_until_it_is_dropped(ledger: Ledger) -> None:
    dead = ledger.batches.begin(reads(0, 0, 10)).batch_key
    ledger.batches.fail(dead, ERROR)
    ledger.batches.claim(dead, "me", 1_000)
    ledger.batches.mark_dead(dead, "me", ERROR)
    done(ledger, reads(0, 10, 20))
    done(ledger, reads(1, 0, 10))
    assert ledger.history.processed_until(JOURNAL, [0]) == (
        Processed("orders", 0, 0, dead, Status.DEAD),
    )
    ledger.repairs.drop_batch("orders", dead, "ada", "as agreed")
    assert ledger.history.processed_until(JOURNAL, [0]) == (Processed("orders", 0, 20),)


def test_each_gate_is_asked_but_those_that_are_left_out(ledger: Ledger) -> None:
    ledger.gates.declare("audit", interval_ms=1, source="journal", estimator="pid")
    done(ledger, reads(0, 0, 10))
    done(ledger, reads(0, 0, 3, gate="audit"))
    done(ledger, reads(1, 0, 3, gate="audit"))
    done(ledger, reads(1, 0, 3))
    told = ledger.history.processed_until(JOURNAL, [0])
    assert told == (Processed("audit", 0, 3), Processed("orders", 0, 10))
    told = ledger.history.processed_until(JOURNAL, [0], without=["audit"])
    assert told == (Processed("orders", 0, 10),)


def test_what_a_fresh_checkpoint_has_not_read_it_may_read_from_the_beginning(
    ledger: Ledger,
) -> None:
    done(ledger, reads(0, 0, 10))
    done(ledger, reads(1, 0, 10))
    done(ledger, reads(1, 3, 5, run="fresh"))
    done(ledger, reads(1, 5, 7, run="fresh"))
    told = ledger.history.processed_until(JOURNAL, [0, 1])
    assert [each.until for each in told] == [0, 5]
