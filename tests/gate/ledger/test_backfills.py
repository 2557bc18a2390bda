from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import insert, text
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.samples import a_batch, batch_number, declare_clicks, stored

from headrace.core.ranges import OffsetRange
from headrace.errors import GateInUseError, LedgerError, OptionError
from headrace.gate.control.dead import BackfillLimits, why_dead
from headrace.gate.ledger.error_report import OWNER_GONE, ErrorReport
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord
from headrace.gate.ledger.tables import gate
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock

ERROR = ErrorReport("app.PriceError", "price is -1", "Traceback ...")

LEASE_MS = 30_000


def one_that_failed(ledger: Ledger) -> BatchRecord:
    batch = ledger.batches.begin(a_batch())
    ledger.batches.fail(batch.batch_key, ERROR)
    return stored(ledger, batch.batch_key)


def one_that_is_taken(ledger: Ledger, owner: str = "me") -> BatchRecord:
    taken = ledger.batches.claim(one_that_failed(ledger).batch_key, owner, LEASE_MS)
    assert taken is not None
    return taken


@pytest.mark.parametrize("other", ["other", None])
def test_no_other_driver_attaches_until_the_lease_has_run_out(
    ledger: Ledger, clock: ManualClock, other: str | None
) -> None:
    key = ledger.batches.begin(a_batch()).batch_key
    ledger.batches.attach(key, 7, owner="me", lease_ms=LEASE_MS)
    ledger.batches.begin(a_batch())  # by transition B: its owner may still be alive
    clock.now_ms += LEASE_MS - 1
    mine = ledger.batches.get(key)
    assert not ledger.batches.attach(key, 8, owner=other, lease_ms=LEASE_MS)
    assert ledger.batches.get(key) == mine
    clock.now_ms += 1
    assert ledger.batches.attach(key, 8, owner=other, lease_ms=LEASE_MS)
    taken_over = stored(ledger, key)
    assert (taken_over.owner, taken_over.query_batch_id) == (other, 8)


@pytest.mark.parametrize("backfill", [False, True])
def test_an_owner_renews_its_lease_as_long_as_nobody_has_taken_the_batch(
    ledger: Ledger, clock: ManualClock, backfill: bool
) -> None:
    if backfill:
        key = one_that_is_taken(ledger).batch_key
    else:
        key = ledger.batches.begin(a_batch()).batch_key
        ledger.batches.attach(key, 7, owner="me", lease_ms=LEASE_MS)
    clock.now_ms += LEASE_MS + 1
    assert not ledger.batches.renew(key, "other", LEASE_MS)
    assert ledger.batches.renew(key, "me", LEASE_MS)
    batch = stored(ledger, key)
    assert batch.lease_until_ms == clock() + LEASE_MS


def test_transitions_d_and_e_can_ask_that_the_batch_be_the_callers(ledger: Ledger) -> None:
    key = ledger.batches.begin(a_batch()).batch_key
    ledger.batches.attach(key, 7, owner="me", lease_ms=LEASE_MS)
    before = ledger.batches.get(key)
    assert not ledger.batches.succeed(key, owner="other")
    assert not ledger.batches.fail(key, ERROR, owner="other")
    assert ledger.batches.get(key) == before
    assert ledger.batches.fail(key, ERROR, owner="me")
    ledger.batches.begin(a_batch())
    ledger.batches.attach(key, 7, owner="me", lease_ms=LEASE_MS)
    assert ledger.batches.succeed(key, owner="me")


def test_transition_e_resolves_what_a_gone_owner_left(ledger: Ledger, clock: ManualClock) -> None:
    declare_clicks(ledger)
    expired, owned, unowned, again = (ledger.batches.begin(batch_number(n)) for n in range(4))
    clock.now_ms += 1_000
    young = ledger.batches.begin(batch_number(4))
    elsewhere = ledger.batches.begin(batch_number(1, gate="clicks"))
    ledger.batches.attach(expired.batch_key, 0, owner="gone", lease_ms=10)
    ledger.batches.attach(owned.batch_key, 1, owner="alive", lease_ms=LEASE_MS)
    ledger.batches.attach(again.batch_key, 2, owner="gone", lease_ms=10)
    clock.now_ms += 10
    moved = ledger.batches.resolve_abandoned(
        "orders", but=again.batch_key, unowned_before_ms=young.created_time_ms
    )
    assert moved == [expired.batch_key, unowned.batch_key]
    for key in moved:
        batch = stored(ledger, key)
        assert (batch.status, batch.error) == (Status.FAILED, OWNER_GONE)
        assert (batch.end_time_ms, batch.attempts) == (clock(), 1)
    for kept in (owned, again, young, elsewhere):
        batch = stored(ledger, kept.batch_key)
        assert batch.status is Status.IN_PROGRESS
    assert (
        ledger.batches.resolve_abandoned("orders", but=again.batch_key, unowned_before_ms=0) == []
    )
    assert ledger.batches.resolve_abandoned("orders", but=None, unowned_before_ms=0) == [
        again.batch_key
    ]


def test_transition_k_settles_open_batches_that_another_checkpoint_reads(ledger: Ledger) -> None:
    """Whoever has them, and only where it reads all of what is open."""
    claim = GateClaim("orders", "a query", None, None, "a test", 1_000, "kafka", "pid")
    ledger.gates.claim(claim, LEASE_MS)
    keys = [ledger.batches.begin(batch_number(n)).batch_key for n in range(6)]
    done, before, running, failed, backfilling, unowned = keys
    ledger.batches.succeed(done)
    ledger.batches.attach(running, 0, owner="alive", lease_ms=LEASE_MS)
    for key in (before, failed, backfilling):
        ledger.batches.fail(key, ERROR)
    ledger.batches.claim(backfilling, "alive", LEASE_MS)
    read = a_batch(OffsetRange("orders", 0, 20, 2**63 - 1))
    cover = replace(read, checkpoint_id="another")
    with pytest.raises(GateInUseError):
        ledger.batches.supersede(cover, "it is read again", "another query")
    assert ledger.batches.supersede(read, "its own", "a query") == []
    settled = ledger.batches.supersede(cover, "it is read again", "a query")
    assert settled == [running, failed, backfilling, unowned]
    assert ledger.batches.supersede(cover, "it is read again", "a query") == []
    for key in settled:
        batch = stored(ledger, key)
        assert (batch.status, batch.resolution) == (Status.DEAD, "it is read again")
        assert batch.owner is None
    assert stored(ledger, failed).error == ERROR
    assert stored(ledger, before).status is Status.FAILED
    assert not ledger.batches.backfilled(backfilling, "alive")


def test_a_checkpoint_that_reads_a_part_of_what_is_open_is_refused(ledger: Ledger) -> None:
    claim = GateClaim("orders", "a query", None, None, "a test", 1_000, "kafka", "pid")
    ledger.gates.claim(claim, LEASE_MS)
    first, second = (ledger.batches.begin(batch_number(n)).batch_key for n in range(2))
    for key in (first, second):
        ledger.batches.fail(key, ERROR)
    (planned,) = ledger.batches.ranges(first)
    read = a_batch(OffsetRange("orders", 0, planned.offsets.until - 1, 2**63 - 1))
    cover = replace(read, checkpoint_id="another")
    with pytest.raises(OptionError, match=f"begins within batch {first}"):
        ledger.batches.supersede(cover, "it is read again", "a query")
    assert {stored(ledger, key).status for key in (first, second)} == {Status.FAILED}


def test_transitions_h_and_f_claim_a_batch_from_a_backfill_whose_lease_has_run_out(
    ledger: Ledger, clock: ManualClock
) -> None:
    first = one_that_is_taken(ledger, "gone")
    clock.now_ms += LEASE_MS - 1
    assert ledger.batches.claim(first.batch_key, "me", LEASE_MS) is None
    assert ledger.batches.get(first.batch_key) == first
    clock.now_ms += 1
    second = ledger.batches.claim(first.batch_key, "me", LEASE_MS)
    assert second is not None
    assert (second.owner, second.attempts) == ("me", first.attempts + 1)
    for end in (
        ledger.batches.renew(first.batch_key, "gone", LEASE_MS),
        ledger.batches.backfilled(first.batch_key, "gone"),
        ledger.batches.mark_dead(first.batch_key, "gone", ERROR),
        ledger.batches.release(first.batch_key, "gone", ERROR, is_dead=False) is not None,
    ):
        assert not end
    assert ledger.batches.get(first.batch_key) == second


def is_last(claimed: BatchRecord, most: int) -> bool:
    return why_dead(claimed, BackfillLimits(most), ERROR) is not None


def test_transition_h_counts_attempts_until_transition_i_ends_them(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger).batch_key
    seen = []
    for attempt in range(3):
        taken = ledger.batches.claim(key, "me", LEASE_MS)
        assert taken is not None
        clock.now_ms += 60
        error = ErrorReport("ValueError", f"no {attempt}", "")
        status = ledger.batches.release(key, "me", error, is_dead=is_last(taken, 3))
        batch = stored(ledger, key)
        assert (batch.status, batch.error, batch.end_time_ms) == (status, error, clock())
        assert (batch.owner, batch.lease_until_ms) == (None, None)
        seen.append((taken.attempts, batch.attempts, status))
    assert seen == [(1, 2, Status.FAILED), (2, 3, Status.FAILED), (3, 4, Status.DEAD)]


def test_however_often_the_live_stream_has_begun_a_batch_it_has_all_its_backfills(
    ledger: Ledger,
) -> None:
    for _ in range(12):
        key = ledger.batches.begin(a_batch()).batch_key
    ledger.batches.fail(key, ERROR)
    for failed in range(3):
        taken = ledger.batches.claim(key, "me", LEASE_MS)
        assert taken is not None
        assert (taken.attempts, taken.backfills) == (12 + failed, failed)
        status = ledger.batches.release(key, "me", ERROR, is_dead=is_last(taken, 3))
    assert status is Status.DEAD


def test_what_failed_comes_earliest_created_first_of_one_gate_or_of_all(
    ledger: Ledger, clock: ManualClock
) -> None:
    declare_clicks(ledger)
    begun = []
    for number in range(5):
        clock.now_ms += 10
        gate_name = "clicks" if number == 1 else "orders"
        begun.append(ledger.batches.begin(batch_number(number, gate=gate_name)).batch_key)
        if number < 4:
            ledger.batches.fail(begun[-1], ERROR)

    def found(gate_name: str | None = None, limit: int = 100) -> list[str]:
        return [batch.batch_key for batch in ledger.batches.failed(gate_name, limit)]

    assert found() == begun[:4]
    assert found("orders") == [begun[0], begun[2], begun[3]]
    assert found("orders", limit=2) == [begun[0], begun[2]]
    ledger.batches.claim(begun[0], "me", LEASE_MS)
    assert found() == begun[1:4]
    clock.now_ms += LEASE_MS
    assert found() == begun[:4]


def sink_of(execute: Execute, ledger: Ledger) -> Callable[[], list[str]]:
    execute(text("CREATE TABLE sink (name TEXT UNIQUE)"))

    def rows() -> list[str]:
        with ledger.batches.lend() as connection:
            return list(connection.scalars(text("SELECT name FROM sink")))

    return rows


@pytest.mark.parametrize("backfill", [False, True])
def test_transitions_d_and_g_commit_together_with_a_sinks_rows(
    ledger: Ledger, execute: Execute, backfill: bool
) -> None:
    rows = sink_of(execute, ledger)
    if backfill:
        key = one_that_is_taken(ledger).batch_key
    else:
        key = ledger.batches.begin(a_batch()).batch_key
        ledger.batches.attach(key, 7, owner="me", lease_ms=LEASE_MS)
    with ledger.batches.transaction(key, "me", records=1) as connection:
        connection.execute(text("INSERT INTO sink VALUES ('tea')"))
    batch = stored(ledger, key)
    assert (batch.status, batch.records, batch.owner) == (Status.SUCCESS, 1, None)
    assert rows() == ["tea"]


def test_a_transaction_of_a_batch_that_is_somebody_elses_is_undone(
    ledger: Ledger, execute: Execute
) -> None:
    rows = sink_of(execute, ledger)
    taken = one_that_is_taken(ledger, "other")
    with (
        pytest.raises(LedgerError, match="does not belong to 'me' any more"),
        ledger.batches.transaction(taken.batch_key, "me") as connection,
    ):
        connection.execute(text("INSERT INTO sink VALUES ('tea')"))
    assert rows() == []
    assert ledger.batches.get(taken.batch_key) == taken


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_transaction_that_raises_is_undone_and_its_exception_is_the_callers(
    ledger: Ledger, execute: Execute, error: BaseException
) -> None:
    rows = sink_of(execute, ledger)
    taken = one_that_is_taken(ledger)
    with (
        pytest.raises(type(error)) as raised,
        ledger.batches.transaction(taken.batch_key, "me") as connection,
    ):
        connection.execute(text("INSERT INTO sink VALUES ('tea')"))
        raise error
    assert raised.value is error
    assert rows() == []
    assert ledger.batches.get(taken.batch_key) == taken


def test_what_a_sinks_own_statement_raises_is_not_called_the_ledgers_fault(
    ledger: Ledger,
) -> None:
    from sqlalchemy.exc import IntegrityError

    taken = one_that_is_taken(ledger)
    row = {"name": "orders", "interval_ms": 1, "source": "", "estimator": "", "created_ms": 1}
    with (
        pytest.raises(IntegrityError),
        ledger.batches.transaction(taken.batch_key, "me") as connection,
    ):
        connection.execute(insert(gate), row)
    assert ledger.batches.get(taken.batch_key) == taken


def test_a_reader_lends_no_transaction(ledger: Ledger, url: str) -> None:
    taken = one_that_is_taken(ledger)
    with (
        Ledger.open(url, create=False) as reader,
        pytest.raises(LedgerError, match="was opened for reading only"),
        reader.batches.transaction(taken.batch_key, "me"),
    ):
        pass
    assert ledger.batches.get(taken.batch_key) == taken


def test_those_that_wait_after_a_backfill_can_be_left_out(
    ledger: Ledger, clock: ManualClock
) -> None:
    fresh, once, twice, crashed = (
        ledger.batches.begin(batch_number(number)).batch_key for number in range(4)
    )
    for key, failures in ((fresh, 0), (once, 1), (twice, 2), (crashed, 0)):
        ledger.batches.fail(key, ERROR)
        for _ in range(failures):
            ledger.batches.claim(key, "me", LEASE_MS)
            ledger.batches.release(key, "me", ERROR, is_dead=False)
    ledger.batches.claim(crashed, "gone", LEASE_MS)
    clock.now_ms += LEASE_MS

    def ready(after_ms: int) -> set[str]:
        clock.now_ms += after_ms
        waits_ms = [0, LEASE_MS + 10, LEASE_MS + 20]
        found = {batch.batch_key for batch in ledger.batches.failed("orders", waits_ms=waits_ms)}
        clock.now_ms -= after_ms
        return found

    assert ready(9) == {fresh}
    assert ready(10) == {fresh, once}
    assert ready(20) == {fresh, once, twice}
    assert ready(LEASE_MS + 10) == {fresh, once, twice, crashed}
    assert len(ledger.batches.failed("orders")) == 4
