from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.samples import a_batch, batch_number, convict, declare_clicks, stored
from tests.services.ledgers import new_ledger
from tests.services.postgresql import NewUrl

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.gate.control.parts import Progress
from headrace.gate.ledger.connection import normalize_url
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetter, DeadLetterRecord, DeadLetterStatus, Unresolved
from headrace.gate.ledger.statements import statements
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock

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
    begun = ledger.batches.begin(a_batch())
    ledger.batches.attach(begun.batch_key, 7, owner="me", lease_ms=LEASE_MS)
    return begun.batch_key


def a_dead_letter(ledger: Ledger, number: int, gate: str = "orders") -> DeadLetterRecord:
    key = ledger.batches.begin(batch_number(number, gate=gate)).batch_key
    convict(ledger, key, replace(LETTER, offset=number * 10))
    return ledger.dead_letters.oldest(gate, limit=1_000)[-1]


@pytest.mark.parametrize(
    "letter",
    [LETTER, replace(LETTER, key=None, value=None, headers=None), replace(LETTER, headers=())],
)
def test_a_convicted_record_is_kept_whole(
    ledger: Ledger, clock: ManualClock, key: str, letter: DeadLetter
) -> None:
    clock.now_ms += 60
    convict(ledger, key, letter)
    (record,) = ledger.dead_letters.oldest()
    assert record == DeadLetterRecord(
        dead_letter_id=record.dead_letter_id,
        batch_key=key,
        gate="orders",
        letter=letter,
        created_ms=clock(),
        status=DeadLetterStatus.WAITING,
        resolved_ms=None,
        resolution=None,
    )
    assert ledger.dead_letters.get(record.dead_letter_id) == record
    batch = stored(ledger, key)
    assert (batch.status, batch.error, batch.attempts) == (Status.SUCCESS, None, 1)
    assert (batch.owner, batch.end_time_ms) == (None, clock())


def test_a_dead_letter_that_cannot_be_written_leaves_its_batch_as_it_was(
    ledger: Ledger, execute: Execute, key: str
) -> None:
    before = ledger.batches.get(key)
    execute(text("DROP TABLE dead_letter"))
    with pytest.raises(LedgerError, match="cannot be used"):
        ledger.batches.keep_progress(key, "me", Progress(running="0"), LETTER)
    assert ledger.batches.get(key) == before


@pytest.mark.parametrize("outcome", [DeadLetterStatus.SENT, DeadLetterStatus.DROPPED])
def test_a_waiting_dead_letter_is_resolved_once(
    ledger: Ledger, clock: ManualClock, outcome: DeadLetterStatus
) -> None:
    letter, other = a_dead_letter(ledger, 1), a_dead_letter(ledger, 2)
    clock.now_ms += 60
    assert ledger.dead_letters.resolve(letter.dead_letter_id, outcome, "a test \x00 order")
    resolved = replace(letter, status=outcome, resolved_ms=clock(), resolution=r"a test \x00 order")
    assert not ledger.dead_letters.resolve(17, outcome, "none has this id")
    assert ledger.dead_letters.get(17) is None
    for again in (DeadLetterStatus.SENT, DeadLetterStatus.DROPPED):
        assert not ledger.dead_letters.resolve(letter.dead_letter_id, again, "again")
    assert ledger.dead_letters.oldest() == (resolved, other)


def test_a_dead_letter_is_not_resolved_as_waiting(ledger: Ledger) -> None:
    letter = a_dead_letter(ledger, 1)
    with pytest.raises(LedgerError, match="cannot be resolved with the status 'waiting'"):
        ledger.dead_letters.resolve(letter.dead_letter_id, DeadLetterStatus.WAITING, "")
    assert ledger.dead_letters.oldest() == (letter,)


def test_dead_letters_come_oldest_first_and_page_by_page(ledger: Ledger) -> None:
    declare_clicks(ledger)
    gates = ("orders", "clicks", "orders", "orders")
    letters = [a_dead_letter(ledger, number, gate) for number, gate in enumerate(gates)]
    ledger.dead_letters.resolve(letters[2].dead_letter_id, DeadLetterStatus.DROPPED, "a test")
    dropped = ledger.dead_letters.get(letters[2].dead_letter_id)
    assert dropped is not None
    assert ledger.dead_letters.oldest() == (*letters[:2], dropped, letters[3])
    assert ledger.dead_letters.oldest("orders") == (letters[0], dropped, letters[3])
    assert ledger.dead_letters.oldest(limit=2) == tuple(letters[:2])
    assert ledger.dead_letters.oldest(after=letters[1].dead_letter_id) == (dropped, letters[3])
    assert ledger.dead_letters.oldest(statuses=[DeadLetterStatus.DROPPED]) == (dropped,)
    assert ledger.dead_letters.oldest("orders", statuses=[DeadLetterStatus.WAITING]) == (
        letters[0],
        letters[3],
    )


def test_prune_keeps_a_waiting_dead_letter_and_deletes_a_resolved_one_with_its_batch(
    ledger: Ledger, clock: ManualClock
) -> None:
    letter = a_dead_letter(ledger, 1)
    ledger.batches.begin(batch_number(2))
    clock.now_ms += 1_000
    assert ledger.history.prune(clock())[0] == 0
    ledger.dead_letters.resolve(letter.dead_letter_id, DeadLetterStatus.DROPPED, "a test")
    assert ledger.history.prune(clock())[0] == 1
    assert ledger.dead_letters.oldest() == ()
    assert ledger.batches.get(letter.batch_key) is None


def test_prune_keeps_what_died_without_a_dead_letter(ledger: Ledger, clock: ManualClock) -> None:
    key = ledger.batches.begin(a_batch(OffsetRange("orders", 0, 0, 5))).batch_key
    ledger.batches.fail(key, ERROR)
    ledger.batches.claim(key, "backfill", LEASE_MS)
    ledger.batches.mark_dead(key, "backfill", ErrorReport("DataLossError", "gone", ""))
    ledger.batches.begin(batch_number(2))
    clock.now_ms += 1_000
    assert ledger.history.prune(clock())[0] == 0
    assert ledger.batches.get(key) is not None


NO = ErrorReport("ValueError", "no", "")


@pytest.mark.parametrize("digits", [1, 8, 32])
def test_batches_are_found_by_the_beginning_of_their_keys(ledger: Ledger, digits: int) -> None:
    keys = sorted(ledger.batches.begin(batch_number(number)).batch_key for number in range(40))
    for key in keys:
        found = [batch.batch_key for batch in ledger.batches.with_prefix(key[:digits], limit=100)]
        assert found == [each for each in keys if each.startswith(key[:digits])]
    assert len(ledger.batches.with_prefix("", limit=2)) == 2
    assert ledger.batches.with_prefix("g") == ()


def unresolved(ledger: Ledger, gate: str) -> Unresolved:
    return ledger.moments.unresolved([gate])[gate]


def test_failures_are_what_failed_and_is_unresolved_earliest_first(ledger: Ledger) -> None:
    declare_clicks(ledger)
    keys = [ledger.batches.begin(batch_number(number)).batch_key for number in range(6)]
    running, failed, taken, good, dead, lettered = keys
    elsewhere = ledger.batches.begin(batch_number(1, gate="clicks")).batch_key
    for key in (failed, taken, good, dead, elsewhere):
        ledger.batches.fail(key, NO)
    for key in (taken, good, dead):
        ledger.batches.claim(key, "me", LEASE_MS)
    ledger.batches.backfilled(good, "me")
    ledger.batches.mark_dead(dead, "me", NO)
    convict(ledger, lettered, DeadLetter("orders", 0, 50, None, b"?", None, 1, 0, NO))

    def found(gate: str | None = None, limit: int = 100) -> list[str]:
        return [batch.batch_key for batch in ledger.batches.unresolved(gate, limit)]

    assert running not in found()
    assert found("orders") == [failed, taken, dead]
    assert set(found()) == {failed, taken, dead, elsewhere}
    assert found("orders", limit=2) == [failed, taken]
    assert found("nobody's") == []
    assert unresolved(ledger, "orders") == Unresolved(failed=2, dead=1, letters=1)
    assert unresolved(ledger, "clicks") == Unresolved(failed=1, dead=0, letters=0)


def test_failures_are_narrowed_by_time_and_exception(ledger: Ledger, clock: ManualClock) -> None:
    began_ms, keys = clock(), []
    for number, error_class in enumerate(["ValueError", "shop.ValueError", "shop.NoValueError"]):
        key = ledger.batches.begin(batch_number(2 * number)).batch_key
        ledger.batches.fail(key, ErrorReport(error_class, "no", ""))
        lettered = ledger.batches.begin(batch_number(2 * number + 1)).batch_key
        error = ErrorReport(error_class, "no", "")
        convict(ledger, lettered, DeadLetter("orders", 0, 50, None, b"?", None, 1, 0, error))
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
        batches, letters = ledger.batches.unresolved(**asked), ledger.dead_letters.oldest(**asked)
        assert len(batches) == len(letters)
        return [
            (batch.batch_key, letter.batch_key)
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
    dead, other, newest = (ledger.batches.begin(batch_number(n)).batch_key for n in range(3))
    assert not ledger.repairs.drop_batch("orders", dead, "ada", "it is in progress")
    for key in (dead, other):
        ledger.batches.fail(key, NO)
        ledger.batches.claim(key, "me", LEASE_MS)
        ledger.batches.mark_dead(key, "me", NO)
    assert ledger.repairs.drop_batch("orders", dead, "ada", "a test order")
    assert not ledger.repairs.drop_batch("orders", dead, "ada", "another reason")
    dropped = stored(ledger, dead)
    assert (dropped.status, dropped.resolution) == (Status.DEAD, "a test order (ada)")
    assert [batch.batch_key for batch in ledger.batches.unresolved()] == [other]
    assert unresolved(ledger, "orders") == Unresolved(failed=0, dead=1, letters=0)
    clock.now_ms += 10_000
    assert ledger.history.prune(clock())[0] == 1
    assert {batch.batch_key for batch in ledger.batches.newest("orders")} == {other, newest}


def rejecting(ledger: Ledger, key: str, *letters: DeadLetter, owner: str = "me") -> None:
    with ledger.batches.transaction(key, owner, rejected=lambda: letters):
        pass


def test_what_a_batch_rejected_is_kept_with_its_success(ledger: Ledger, key: str) -> None:
    letters = [replace(LETTER, partition=0, offset=offset) for offset in (12, 13, 17)]
    rejecting(ledger, key, *letters, letters[0])
    assert [record.letter for record in ledger.dead_letters.oldest()] == letters
    assert stored(ledger, key).status is Status.SUCCESS
    assert ledger.dead_letters.count_rejected([key, "another"]) == {key: 3}
    assert unresolved(ledger, "orders") == Unresolved(letters=3)


def test_what_a_batch_rejected_that_is_not_the_owner_s_any_more_is_not_kept(
    ledger: Ledger, key: str
) -> None:
    with pytest.raises(LedgerError, match="does not belong to 'another' any more"):
        rejecting(ledger, key, LETTER, owner="another")
    assert ledger.dead_letters.oldest() == ()
    assert stored(ledger, key).status is Status.IN_PROGRESS


def test_a_batch_with_rejected_letters_that_wait_is_not_pruned(
    ledger: Ledger, clock: ManualClock, key: str
) -> None:
    rejecting(ledger, key, LETTER)
    ledger.batches.begin(batch_number(9))
    assert ledger.history.prune(clock() + 1_000)[0] == 0
    (letter,) = ledger.dead_letters.oldest()
    ledger.dead_letters.resolve(letter.dead_letter_id, DeadLetterStatus.DROPPED, "known")
    assert ledger.history.prune(clock() + 1_000)[0] == 1


MANY_GATES, MANY_LETTERS = 20, 40_000


@pytest.mark.nightly
@pytest.mark.parametrize("since_ms", [None, MANY_LETTERS - 2_500])
def test_a_list_of_all_gates_looks_for_the_oldest_letters_of_each_gate_once(
    new_postgresql_url: NewUrl, since_ms: int | None
) -> None:
    url = new_postgresql_url()
    values = {"status": "waiting", "after": 0, "limit": 100, "all_but_one": 99}
    if since_ms is not None:
        values["since_ms"] = since_ms
    with new_ledger(url) as ledger:
        for number in range(MANY_GATES):
            ledger.gates.declare(str(number), interval_ms=1_000, source="kafka", estimator="pid")
        key = ledger.batches.begin(a_batch(gate="0")).batch_key
    engine = sqlalchemy.create_engine(normalize_url(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(
            text("""
                INSERT INTO dead_letter (batch_key, gate, topic, partition, "offset", timestamp_ms,
                  timestamp_type, error_class, error_message, error_trace, created_ms, status)
                SELECT :key, CAST(mod(number, :gates) AS text), 'orders', 0, number, 0,
                  0, 'ValueError', '', '', number,
                  CASE WHEN number > :letters - 5000 THEN 'waiting' ELSE 'sent' END
                FROM generate_series(1, :letters) AS number
            """),
            {"key": key, "gates": MANY_GATES, "letters": MANY_LETTERS},
        )
        connection.execute(text("ANALYZE"))
        statement = statements("dead_letter")["oldest_of_all"].on("postgresql", values)
        explained = text(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}")
        plan = connection.execute(explained, values).scalar_one()[0]["Plan"]
    engine.dispose()
    loops = [
        node["Actual Loops"]
        for node in nodes_of(plan)
        if node.get("Parent Relationship") == "SubPlan"
    ]
    assert loops == [MANY_GATES]


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes_of(child)
