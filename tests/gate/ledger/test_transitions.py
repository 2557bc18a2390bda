from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.samples import batch_number, stored

from headrace.errors import LedgerError
from headrace.gate.control.parts import Progress
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetter
from headrace.gate.ledger.tables import batch_table
from headrace.gate.ledger.transitions import TRANSITIONS, Status
from headrace.testing import ManualClock


def test_the_transitions_are_those_of_the_reference() -> None:
    found = {(each.letters, each.before, each.after) for each in TRANSITIONS}
    assert found == {
        ("B, C", ("in_progress", "failed"), "in_progress"),
        ("B", ("in_progress",), "in_progress"),
        ("D", ("in_progress",), "success"),
        ("E", ("in_progress",), "failed"),
        ("F; H, F", ("failed", "backfilling"), "backfilling"),
        ("G", ("backfilling",), "success"),
        ("H", ("backfilling",), "failed"),
        ("I", ("backfilling",), "dead"),
        ("J", ("backfilling",), "failed"),
        ("K", ("failed",), "dead"),
    }


NOW_MS = ManualClock().now_ms
ERROR = ErrorReport("app.PriceError", "price is -1", "Traceback ...")
LETTER = DeadLetter("orders", 0, 3, None, b"?", None, 0, 0, ERROR)
LEASE_MS = 30_000


class Call(NamedTuple):
    """A call of the ledger by an owner, where it leads to from where, and what it sets there."""

    call: Callable[[Ledger, str, str], object]
    leads: dict[Status, Status]
    sets: dict[str, Any]


def transaction(ledger: Ledger, key: str, owner: str) -> bool:
    try:
        with ledger.batches.transaction(key, owner, records=9):
            return True
    except LedgerError:
        return False


PROGRESS = Progress(done=frozenset(["0"]), running="1", runs=2)
ENDED = {"owner": None, "lease_until_ms": None, "end_time_ms": NOW_MS}
LEASED = {"owner": "me", "lease_until_ms": NOW_MS + LEASE_MS}
RUNNING, BACKFILLING, SUCCESS = Status.IN_PROGRESS, Status.BACKFILLING, Status.SUCCESS
FAILED, DEAD = Status.FAILED, Status.DEAD

CALLS = {
    "attach": Call(
        lambda ledger, key, by: ledger.batches.attach(key, 7, owner=by, lease_ms=LEASE_MS),
        {RUNNING: RUNNING},
        {"query_batch_id": 7, "start_time_ms": NOW_MS, **LEASED},
    ),
    "retry": Call(
        lambda ledger, key, by: ledger.batches.retry(key, by, LEASE_MS),
        {RUNNING: RUNNING},
        {"attempts": 2, "start_time_ms": NOW_MS, **LEASED},
    ),
    "renew": Call(
        lambda ledger, key, by: ledger.batches.renew(key, by, LEASE_MS),
        {RUNNING: RUNNING, BACKFILLING: BACKFILLING},
        LEASED,
    ),
    "succeed": Call(
        lambda ledger, key, by: ledger.batches.succeed(key, records=9, owner=by),
        {RUNNING: SUCCESS},
        {"records": 9, **ENDED},
    ),
    "fail": Call(
        lambda ledger, key, by: ledger.batches.fail(key, ERROR, owner=by, outcome_unknown=True),
        {RUNNING: FAILED},
        {"error": ERROR, "outcome_unknown": True, **ENDED},
    ),
    "transaction": Call(
        transaction, {RUNNING: SUCCESS, BACKFILLING: SUCCESS}, {"records": 9, **ENDED}
    ),
    "backfilled": Call(
        lambda ledger, key, by: ledger.batches.backfilled(key, by, records=9),
        {BACKFILLING: SUCCESS},
        {"records": 9, **ENDED},
    ),
    "release": Call(
        lambda ledger, key, by: ledger.batches.release(key, by, ERROR, is_dead=False),
        {BACKFILLING: FAILED},
        {"error": ERROR, "attempts": 2, "backfills": 1, **ENDED},
    ),
    "release the last": Call(
        lambda ledger, key, by: ledger.batches.release(key, by, ERROR, is_dead=True),
        {BACKFILLING: DEAD},
        {"error": ERROR, "attempts": 2, "backfills": 1, **ENDED},
    ),
    "mark_dead": Call(
        lambda ledger, key, by: ledger.batches.mark_dead(key, by, ERROR),
        {BACKFILLING: DEAD},
        {"error": ERROR, **ENDED},
    ),
    "keep_progress": Call(
        lambda ledger, key, by: ledger.batches.keep_progress(key, by, PROGRESS, LETTER),
        {RUNNING: RUNNING, BACKFILLING: BACKFILLING},
        {"progress": PROGRESS.to_text(), "done_records": 5},
    ),
    "put_back": Call(
        lambda ledger, key, by: ledger.batches.put_back(key, by), {BACKFILLING: FAILED}, ENDED
    ),
    "claim": Call(
        lambda ledger, key, _by: ledger.batches.claim(key, "me", LEASE_MS),
        {FAILED: BACKFILLING},
        {"start_time_ms": NOW_MS, "end_time_ms": None, **LEASED},
    ),
    "keep_error": Call(
        lambda ledger, key, _by: ledger.batches.keep_error(key, ERROR),
        {SUCCESS: SUCCESS},
        {"error": ERROR},
    ),
    "drop": Call(
        lambda ledger, key, _by: ledger.repairs.drop_batch("orders", key, "ada", "a test"),
        {DEAD: DEAD},
        {"resolution": "a test (ada)"},
    ),
}
OF_ANYBODY = {"claim", "keep_error", "drop"}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_leads_where_its_transition_does_and_from_elsewhere_changes_nothing(
    ledger: Ledger, execute: Execute, name: str
) -> None:
    call, leads, sets = CALLS[name]
    assert not call(ledger, "nobody's", "me")
    for number, status in enumerate(Status):
        key = ledger.batches.begin(batch_number(number)).batch_key
        running = status in {RUNNING, BACKFILLING}
        owned = {"owner": "me", "lease_until_ms": NOW_MS + 1} if running else {}
        execute(
            batch_table.update()
            .where(batch_table.c.batch_key == key)
            .values(status=status, **owned)
        )
        before = stored(ledger, key)
        if running or name not in OF_ANYBODY:
            assert not call(ledger, key, "other")
            assert stored(ledger, key) == before
        assert bool(call(ledger, key, "me")) == (status in leads)
        if status in leads:
            assert stored(ledger, key) == replace(before, status=leads[status], **sets)
        else:
            assert stored(ledger, key) == before
