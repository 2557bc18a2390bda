"""Operators' actions on failures, and groups of like failures, on both databases."""

import pytest
from sqlalchemy import update
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.samples import batch_number, convict, declare_clicks, stored

from headrace.errors import LedgerError, OptionError
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetter, DeadLetterStatus
from headrace.gate.ledger.tables import dead_letter as dead_letter_table
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock


def failed(ledger: Ledger, number: int, error: Exception | None = None) -> str:
    key = ledger.batches.begin(batch_number(number)).batch_key
    ledger.batches.fail(key, error or ValueError("no number"))
    return key


def dead_letter(ledger: Ledger, number: int) -> int:
    key = ledger.batches.begin(batch_number(number)).batch_key
    report = ErrorReport("ValueError", "no number", "")
    letter = DeadLetter("orders", 0, number * 10, None, b"x", None, 0, 0, report)
    convict(ledger, key, letter)
    return ledger.repairs.letters_of(key)[0].dead_letter_id


def test_a_retry_is_due_at_once_and_not_again_after_it_failed(
    ledger: Ledger, clock: ManualClock
) -> None:
    waits_ms = (3_600_000,)
    keys = [failed(ledger, number) for number in range(2)]
    assert ledger.batches.failed("orders", waits_ms=waits_ms) == ()
    assert ledger.repairs.retry("orders", [keys[0]], "ada", "the sink is back") == 1
    due = ledger.batches.failed("orders", waits_ms=waits_ms)
    assert [each.batch_key for each in due] == [keys[0]]
    assert ledger.batches.claim(keys[0], "me", 60_000) is not None
    clock.sleep(1)
    ledger.batches.release(keys[0], "me", ValueError("again"), is_dead=False)
    assert stored(ledger, keys[0]).status is Status.FAILED
    assert ledger.batches.failed("orders", waits_ms=waits_ms) == ()


def test_an_action_on_what_is_not_failed_changes_nothing_and_is_kept(ledger: Ledger) -> None:
    key = ledger.batches.begin(batch_number(0)).batch_key
    ledger.batches.succeed(key)
    assert ledger.repairs.retry("orders", [key], "ada", "x") == 0
    assert ledger.repairs.drop_batch("orders", key, "ada", "x") == 0
    assert stored(ledger, key).retry_ms is None
    assert [each.outcome for each in ledger.operator_limits.history(None)] == [
        "nothing to change"
    ] * 2


def test_another_gate_s_batch_is_not_touched(ledger: Ledger) -> None:
    declare_clicks(ledger)
    key = failed(ledger, 0)
    assert ledger.repairs.retry("clicks", [key], "ada", "x") == 0
    assert stored(ledger, key).retry_ms is None


def test_letters_are_dropped_with_the_reason_and_who(ledger: Ledger) -> None:
    letters = [dead_letter(ledger, number) for number in range(3)]
    assert ledger.repairs.drop_letters("orders", letters[:2], "ada", "test orders") == 2
    assert ledger.repairs.drop_letters("orders", letters[:2], "ada", "once more") == 0
    first = ledger.dead_letters.get(letters[0])
    assert first is not None and first.status is DeadLetterStatus.DROPPED
    assert first.resolution == "test orders (ada)"
    waiting = ledger.dead_letters.oldest("orders", statuses=[DeadLetterStatus.WAITING])
    assert [each.dead_letter_id for each in waiting] == letters[2:]


def test_a_send_is_written_down_before_it_begins(ledger: Ledger) -> None:
    number = ledger.repairs.begin_send("orders", [7], "ada", "corrected")
    (begun,) = ledger.operator_limits.history(None)
    assert (begun.number, begun.target, begun.outcome) == (number, "dead letter 7", None)
    ledger.repairs.end_send(number, "1 sent")
    assert ledger.operator_limits.history(None)[0].outcome == "1 sent"


@pytest.mark.parametrize(("by", "why"), [("", "x"), ("ada", ""), ("a" * 101, "x"), ("ada", " \n")])
def test_nobody_acts_without_a_name_and_a_reason(ledger: Ledger, by: str, why: str) -> None:
    key = failed(ledger, 0)
    with pytest.raises(OptionError, match="characters"):
        ledger.repairs.retry("orders", [key], by, why)
    assert stored(ledger, key).retry_ms is None
    assert ledger.operator_limits.history(None) == ()


def test_a_gate_that_is_not_declared_is_refused_and_nothing_done(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'none' is not declared"):
        ledger.repairs.retry("none", ["0" * 32], "ada", "x")
    assert ledger.operator_limits.history(None) == ()


def test_what_failed_alike_is_a_group(ledger: Ledger) -> None:
    keys = [failed(ledger, number) for number in range(3)]
    failed(ledger, 3, OSError("the disk is full"))
    for number in (4, 5):
        dead_letter(ledger, number)
    groups = {each.error_class: each for each in ledger.repairs.alike_batches("orders")}
    assert {name: each.number for name, each in groups.items()} == {"ValueError": 3, "OSError": 1}
    alike = groups["ValueError"]
    assert (alike.message, alike.status, alike.records) == ("no number", "failed", 30)
    assert alike.messages == 1
    assert alike.key in keys
    (letters,) = ledger.repairs.alike_letters(None)
    assert (letters.gate, letters.error_class, letters.number) == ("orders", "ValueError", 2)
    assert ledger.repairs.alike_batches("clicks") == ()


def test_a_letter_that_is_being_sent_is_nobody_else_s(ledger: Ledger) -> None:
    letters = ledger.dead_letters
    numbers = [dead_letter(ledger, number) for number in range(3)]
    with letters.claimed(numbers[:2]) as mine:
        assert mine.letters == set(numbers[:2])
        with letters.claimed(numbers) as theirs:
            assert theirs.letters == {numbers[2]}
        assert not letters.resolve(numbers[0], DeadLetterStatus.DROPPED, "not needed")
        assert ledger.repairs.drop_letters("orders", numbers[:2], "ada", "not needed") == 0
        assert letters.resolve(numbers[0], DeadLetterStatus.SENT, "there", mine)
    assert letters.resolve(numbers[1], DeadLetterStatus.DROPPED, "not needed")
    assert not letters.resolve(numbers[0], DeadLetterStatus.DROPPED, "not needed")
    with letters.claimed(numbers) as rest:
        assert rest.letters == {numbers[2]}


def test_the_letters_of_a_sender_that_died_wait_again_after_a_while(
    ledger: Ledger, execute: Execute
) -> None:
    number = dead_letter(ledger, 0)
    with ledger.dead_letters.claimed([number]) as claim:
        execute(update(dead_letter_table).values(claimed_until_ms=1))
        with ledger.dead_letters.claimed([number]) as mine:
            assert mine.letters == {number}
            late = ledger.dead_letters.resolve(number, DeadLetterStatus.SENT, "late", claim)
            assert not late
            assert ledger.dead_letters.resolve(number, DeadLetterStatus.SENT, "there", mine)
