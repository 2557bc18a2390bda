"""Batches with records that were found bad because the handler raised."""

from dataclasses import replace

from tests.gate.ledger.samples import a_batch, batch_number, convict, declare_clicks
from tests.gate.ledger.test_dead_letters import LETTER

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.error_report import REJECTED, ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, DeadLetterStatus, PlannedBatch
from headrace.testing import ManualClock

LEASE_MS = 30_000
NEWER = ErrorReport("app.PriceError", "price is -2", "")


def one_of_mine(ledger: Ledger, batch: PlannedBatch) -> BatchRecord:
    begun = ledger.batches.begin(batch)
    ledger.batches.attach(begun.batch_key, 7, owner="me", lease_ms=LEASE_MS)
    return begun


def isolate(ledger: Ledger, *errors: ErrorReport) -> BatchRecord:
    """A batch of offsets 10 to 20, of which the first are bad."""
    whole = one_of_mine(ledger, a_batch())
    letters = [
        replace(LETTER, topic="orders", partition=0, offset=offset, error=error)
        for offset, error in enumerate(errors, start=10)
    ]
    convict(ledger, whole.batch_key, *letters)
    return whole


def test_a_batch_counts_once_with_the_newest_exception_without_its_trace(ledger: Ledger) -> None:
    whole = isolate(ledger, LETTER.error, NEWER)
    assert ledger.batches.isolated("orders", 0) == {whole.batch_key: replace(NEWER, trace="")}
    declare_clicks(ledger)
    assert ledger.batches.isolated("clicks", 0) == {}
    alone = one_of_mine(ledger, a_batch(OffsetRange("orders", 0, 20, 21)))
    convict(ledger, alone.batch_key, replace(LETTER, offset=20))
    assert [*ledger.batches.isolated("orders", 0)] == [alone.batch_key, whole.batch_key]


def test_a_dead_letter_that_was_dropped_counts_and_one_of_an_older_batch_does_not(
    ledger: Ledger, clock: ManualClock
) -> None:
    whole = isolate(ledger, NEWER)
    (letter,) = ledger.dead_letters.oldest()
    assert ledger.dead_letters.resolve(letter.dead_letter_id, DeadLetterStatus.DROPPED, "a test")
    assert [*ledger.batches.isolated("orders", whole.created_time_ms)] == [whole.batch_key]
    clock.now_ms += 60_000
    assert ledger.batches.isolated("orders", clock()) == {}


def test_rejected_records_passed_parts_and_dead_batches_do_not_count(ledger: Ledger) -> None:
    isolate(ledger)
    rejecting = one_of_mine(ledger, batch_number(3))
    letter = replace(
        LETTER, topic="orders", partition=0, offset=31, error=ErrorReport(REJECTED, "no", "")
    )
    with ledger.batches.transaction(rejecting.batch_key, "me", rejected=lambda: [letter]):
        pass
    assert ledger.batches.keep_error(rejecting.batch_key, NEWER)
    dead = one_of_mine(ledger, batch_number(4))
    assert ledger.batches.fail(dead.batch_key, NEWER)
    assert ledger.batches.claim(dead.batch_key, "a backfill", LEASE_MS)
    assert ledger.batches.mark_dead(dead.batch_key, "a backfill", NEWER)
    assert len(ledger.dead_letters.oldest()) == 1
    assert ledger.batches.isolated("orders", 0) == {}
