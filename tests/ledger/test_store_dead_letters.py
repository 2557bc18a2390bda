"""Records that cannot be processed: kept whole, until somebody has done something about them."""

from dataclasses import replace

import pytest
from sqlalchemy import text
from tests.ledger.conftest import Execute
from tests.ledger.samples import ManualClock, a_batch, batch_number

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.ledger import (
    DeadLetter,
    DeadLetterRecord,
    ErrorReport,
    Ledger,
    LetterStatus,
    Status,
)
from headrace.ledger.tables import control

ERROR = ErrorReport("app.PriceError", "price is -1", "Traceback ...")
LEASE_MS = 30_000
LETTER = DeadLetter(
    topic="orders",
    partition=3,
    offset=2**40,
    key=b"\x00\xff",
    value=b"not json",
    headers=(("trace", b"\xfe"), ("größe\x00", None), ("trace", b"")),
    timestamp_ms=1_699_999_999_999,
    timestamp_type=1,
    error=ERROR,
)


@pytest.fixture
def key(ledger: Ledger) -> str:
    """A batch that is being processed."""
    begun = ledger.begin(a_batch())
    ledger.attach(begun.schedule_id, 7, owner="me", lease_ms=LEASE_MS)
    return begun.schedule_id


def a_dead_letter(ledger: Ledger, number: int, gate: str = "orders") -> DeadLetterRecord:
    key = ledger.begin(batch_number(number, gate=gate)).schedule_id
    assert ledger.bury_record(key, replace(LETTER, offset=number * 10))
    return ledger.dead_letters(gate, limit=1_000)[-1]


@pytest.mark.parametrize(
    "letter",
    [LETTER, replace(LETTER, key=None, value=None, headers=None), replace(LETTER, headers=())],
)
def test_arrows_e_f_and_i_keep_the_record_whole(
    ledger: Ledger, clock: ManualClock, key: str, letter: DeadLetter
) -> None:
    clock.now_ms += 60
    assert ledger.bury_record(key, letter)
    (record,) = ledger.dead_letters()
    assert record == DeadLetterRecord(
        dead_letter_id=record.dead_letter_id,
        schedule_id=key,
        gate="orders",
        letter=letter,
        created_ms=clock(),
        status=LetterStatus.WAITING,
        resolved_ms=None,
        resolution=None,
    )
    assert ledger.dead_letter(record.dead_letter_id) == record
    batch = ledger.batch(key)
    assert batch is not None
    assert (batch.status, batch.error, batch.attempts) == (Status.DEAD, ERROR, 1)
    assert (batch.owner, batch.end_time_ms) == (None, clock())


def test_arrow_i_keeps_the_record_of_a_backfill(ledger: Ledger, key: str) -> None:
    ledger.fail(key, ERROR)
    ledger.take(key, "backfill", LEASE_MS)
    assert not ledger.bury_record(key, LETTER, owner="other")
    assert ledger.dead_letters() == ()
    assert ledger.bury_record(key, LETTER, owner="backfill")
    assert len(ledger.dead_letters()) == 1


def test_a_record_that_is_buried_again_after_a_crash_is_one_dead_letter(
    ledger: Ledger, key: str
) -> None:
    assert ledger.bury_record(key, LETTER)
    assert not ledger.bury_record(key, LETTER)
    assert len(ledger.dead_letters()) == 1


@pytest.mark.parametrize("status", [Status.FAILED, Status.SUCCESS, Status.DEAD])
def test_the_record_of_a_batch_that_nobody_runs_is_not_buried(
    ledger: Ledger, execute: Execute, key: str, status: Status
) -> None:
    execute(control.update().values(status=status))
    before = ledger.batch(key)
    assert not ledger.bury_record(key, LETTER)
    assert not ledger.bury_record("nobody", LETTER)
    assert ledger.batch(key) == before
    assert ledger.dead_letters() == ()


def test_a_dead_letter_that_cannot_be_written_leaves_its_batch_as_it_was(
    ledger: Ledger, execute: Execute, key: str
) -> None:
    before = ledger.batch(key)
    execute(text("DROP TABLE dead_letter"))
    with pytest.raises(LedgerError, match="cannot be used"):
        ledger.bury_record(key, LETTER)
    assert ledger.batch(key) == before


@pytest.mark.parametrize("outcome", [LetterStatus.SENT, LetterStatus.DROPPED])
def test_a_waiting_dead_letter_is_resolved_once(
    ledger: Ledger, clock: ManualClock, outcome: LetterStatus
) -> None:
    letter, other = a_dead_letter(ledger, 1), a_dead_letter(ledger, 2)
    clock.now_ms += 60
    assert ledger.resolve(letter.dead_letter_id, outcome, "a test \x00 order")
    resolved = replace(letter, status=outcome, resolved_ms=clock(), resolution=r"a test \x00 order")
    for again in (LetterStatus.SENT, LetterStatus.DROPPED):
        assert not ledger.resolve(letter.dead_letter_id, again, "again")
    assert ledger.dead_letters() == (resolved, other)


def test_a_dead_letter_that_does_not_exist_is_not_resolved(ledger: Ledger) -> None:
    assert not ledger.resolve(17, LetterStatus.SENT, "")
    assert ledger.dead_letter(17) is None


def test_a_dead_letter_is_not_resolved_as_waiting(ledger: Ledger) -> None:
    letter = a_dead_letter(ledger, 1)
    with pytest.raises(LedgerError, match="cannot be resolved as 'waiting'"):
        ledger.resolve(letter.dead_letter_id, LetterStatus.WAITING, "")
    assert ledger.dead_letters() == (letter,)


def test_dead_letters_come_oldest_first_and_page_by_page(ledger: Ledger) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    gates = ("orders", "clicks", "orders", "orders")
    letters = [a_dead_letter(ledger, number, gate) for number, gate in enumerate(gates)]
    ledger.resolve(letters[2].dead_letter_id, LetterStatus.DROPPED, "a test")
    dropped = ledger.dead_letter(letters[2].dead_letter_id)
    assert dropped is not None
    assert ledger.dead_letters() == (*letters[:2], dropped, letters[3])
    assert ledger.dead_letters("orders") == (letters[0], dropped, letters[3])
    assert ledger.dead_letters(limit=2) == tuple(letters[:2])
    assert ledger.dead_letters(after=letters[1].dead_letter_id) == (dropped, letters[3])
    assert ledger.dead_letters(statuses=[LetterStatus.DROPPED]) == (dropped,)
    assert ledger.dead_letters("orders", statuses=[LetterStatus.WAITING]) == (
        letters[0],
        letters[3],
    )


def test_prune_keeps_a_waiting_dead_letter_and_deletes_a_resolved_one_with_its_batch(
    ledger: Ledger, clock: ManualClock
) -> None:
    letter = a_dead_letter(ledger, 1)
    ledger.begin(batch_number(2))
    clock.now_ms += 1_000
    assert ledger.prune(clock()).batches == 0
    ledger.resolve(letter.dead_letter_id, LetterStatus.DROPPED, "a test")
    assert ledger.prune(clock()).batches == 1
    assert ledger.dead_letters() == ()
    assert ledger.batch(letter.schedule_id) is None


def test_prune_keeps_what_died_without_a_dead_letter(ledger: Ledger, clock: ManualClock) -> None:
    key = ledger.begin(a_batch(OffsetRange("orders", 0, 0, 5))).schedule_id
    ledger.fail(key, ERROR)
    ledger.take(key, "backfill", LEASE_MS)
    ledger.bury(key, "backfill", ErrorReport("DataLossError", "gone", ""))
    ledger.begin(batch_number(2))
    clock.now_ms += 1_000
    assert ledger.prune(clock()).batches == 0
    assert ledger.batch(key) is not None
