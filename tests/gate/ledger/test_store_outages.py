"""A write whose connection was cut is done once, and answered rightly."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from sqlalchemy import update
from tests.gate.ledger.cuts import Cuts, Moment
from tests.gate.ledger.samples import a_batch, a_receiver, a_sample, batch_number
from tests.services.ledgers import new_ledger, patient, report_sample
from tests.services.postgresql import NewUrl

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.gate.control.parts import Progress
from headrace.gate.ledger.connection import Timeouts
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Missed
from headrace.gate.ledger.records import DeadLetter, DeadLetterStatus
from headrace.gate.ledger.tables import gate, metadata
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock

KEY = batch_number(0).batch_key
HALVES = tuple(a_batch(OffsetRange("orders", 0, start, start + 5)) for start in (0, 5))
ERROR = ErrorReport("ValueError", "no", "")
LETTER = DeadLetter("orders", 0, 3, b"key", b"value", None, 0, 0, ERROR)
LEASE_MS = 30_000

# Numbers that are not the same when something was tried twice.
_NUMBERS = {"last_call", "rate_id", "failure_id", "dead_letter_id", "sequence"} | {
    "gate_id",
    "action_id",
    "hold_action",
    "limit_action",
    "last_action",
}


class Write(NamedTuple):
    """A call, and what goes before it; both on an empty ledger."""

    prepare: Callable[[Ledger], object]
    call: Callable[[Ledger], object]


MISSED = Missed(lost=6, ranges=(("topic id", OffsetRange("orders", 0, 3, 9)),))
PROGRESS = Progress(done=frozenset(["0"]), running="1", runs=2)


def begun(ledger: Ledger) -> None:
    ledger.batches.begin(batch_number(0))


def owned(ledger: Ledger) -> None:
    begun(ledger)
    ledger.batches.attach(KEY, 7, owner="me", lease_ms=LEASE_MS)


def attached(ledger: Ledger, **owner: Any) -> object:
    """Attach the batch; return the answer to its owner, without the run's number."""
    found = ledger.batches.attach(KEY, 7, **owner)
    return found and (found.batch, found.ranges)


def failed(ledger: Ledger) -> None:
    begun(ledger)
    ledger.batches.fail(KEY, ERROR)


def taken(ledger: Ledger) -> None:
    failed(ledger)
    ledger.batches.claim(KEY, "me", LEASE_MS)


def taken_by_one_who_is_gone(ledger: Ledger) -> None:
    failed(ledger)
    ledger.batches.claim(KEY, "other", 0)


def dead(ledger: Ledger) -> None:
    taken(ledger)
    ledger.batches.mark_dead(KEY, "me", ERROR)


def buried(ledger: Ledger) -> None:
    owned(ledger)
    ledger.batches.keep_progress(KEY, "me", PROGRESS, LETTER)


def left_behind(ledger: Ledger) -> None:
    for number in range(3):
        ledger.batches.begin(batch_number(number))


def received(ledger: Ledger) -> None:
    ledger.receivers.heartbeat(a_receiver(owner="other"))


def nothing(_: Ledger) -> None:
    """On an empty ledger."""


WRITES: dict[str, Write] = {
    "declare_gate": Write(
        nothing, lambda ledger: ledger.gates.declare("b", interval_ms=1, source="s", estimator="e")
    ),
    "begin, by arrow A": Write(nothing, lambda ledger: ledger.batches.begin(batch_number(0))),
    "begin, by arrow B": Write(begun, lambda ledger: ledger.batches.begin(batch_number(0))),
    "begin, by arrow C": Write(failed, lambda ledger: ledger.batches.begin(batch_number(0))),
    "attach": Write(begun, attached),
    "attach an owner": Write(begun, lambda ledger: attached(ledger, owner="me", lease_ms=LEASE_MS)),
    "retry": Write(owned, lambda ledger: ledger.batches.retry(KEY, "me", LEASE_MS)),
    "renew": Write(owned, lambda ledger: ledger.batches.renew(KEY, "me", 2 * LEASE_MS)),
    "succeed": Write(begun, lambda ledger: ledger.batches.succeed(KEY, records=8)),
    "succeed as owner": Write(owned, lambda ledger: ledger.batches.succeed(KEY, owner="me")),
    "fail": Write(begun, lambda ledger: ledger.batches.fail(KEY, ERROR)),
    "fail as owner": Write(owned, lambda ledger: ledger.batches.fail(KEY, ERROR, owner="me")),
    "settle": Write(
        left_behind,
        lambda ledger: ledger.batches.resolve_abandoned("orders", but=KEY, unowned_before_ms=2**60),
    ),
    "take": Write(failed, lambda ledger: ledger.batches.claim(KEY, "me", LEASE_MS)),
    "take from one who is gone": Write(
        taken_by_one_who_is_gone, lambda ledger: ledger.batches.claim(KEY, "me", LEASE_MS)
    ),
    "backfilled": Write(taken, lambda ledger: ledger.batches.backfilled(KEY, "me", records=8)),
    "give_back, by arrow H": Write(
        taken, lambda ledger: ledger.batches.release(KEY, "me", ERROR, is_dead=False)
    ),
    "give_back, by arrow I": Write(
        taken, lambda ledger: ledger.batches.release(KEY, "me", ERROR, is_dead=True)
    ),
    "bury": Write(taken, lambda ledger: ledger.batches.mark_dead(KEY, "me", ERROR)),
    "keep_progress": Write(
        owned, lambda ledger: ledger.batches.keep_progress(KEY, "me", PROGRESS, LETTER)
    ),
    "put_back": Write(taken, lambda ledger: ledger.batches.put_back(KEY, "me")),
    "resolve": Write(
        buried, lambda ledger: ledger.dead_letters.resolve(1, DeadLetterStatus.SENT, "to retries")
    ),
    "publish_rate": Write(
        begun, lambda ledger: report_sample(ledger, a_sample(5, 12.5, batch_key=KEY))
    ),
    "publish_rate without a rate": Write(
        begun, lambda ledger: report_sample(ledger, a_sample(5, None))
    ),
    "report": Write(
        begun, lambda ledger: ledger.rates.report(KEY, 7, 3, a_sample(5, 12.5, batch_key=KEY))
    ),
    "report without a sample": Write(begun, lambda ledger: ledger.rates.report(KEY, 7, 3, None)),
    "record_losses": Write(
        nothing, lambda ledger: ledger.history.record_losses("orders", [OffsetRange("t", 0, 3, 9)])
    ),
    "record_losses of a batch": Write(
        begun,
        lambda ledger: ledger.history.record_losses(
            "orders", [OffsetRange("orders", 0, 3, 9)], batch_key=KEY
        ),
    ),
    "see_receiver": Write(received, lambda ledger: ledger.receivers.heartbeat(a_receiver())),
    "pause": Write(
        nothing, lambda ledger: ledger.operator_limits.pause("orders", "ops", "a test").describe()
    ),
    "resume": Write(
        lambda ledger: ledger.operator_limits.pause("orders", "ops"),
        lambda ledger: ledger.operator_limits.resume("orders", "ops").describe(),
    ),
    "limit": Write(
        nothing, lambda ledger: ledger.operator_limits.limit("orders", 5, "ops").describe()
    ),
    "retry a batch": Write(
        failed, lambda ledger: ledger.repairs.retry("orders", [KEY], "ops", "x")
    ),
    "drop a batch": Write(
        dead, lambda ledger: ledger.repairs.drop_batch("orders", KEY, "ops", "not needed")
    ),
    "drop a letter": Write(
        buried, lambda ledger: ledger.repairs.drop_letters("orders", [1], "ops", "not needed")
    ),
    "begin_send": Write(
        buried, lambda ledger: ledger.repairs.begin_send("orders", [1], "ops", "to try") > 0
    ),
    "accept": Write(
        nothing, lambda ledger: ledger.repairs.accept("orders", MISSED, 6, "ops", "not needed")
    ),
    "leave": Write(received, lambda ledger: ledger.receivers.deregister(a_receiver(owner="other"))),
}


def opened(url: str, clock: ManualClock, timeouts: Timeouts) -> Ledger:
    """A ledger with the gate ``orders``."""
    ledger = new_ledger(url, clock=clock, database_clock=clock, timeouts=timeouts)
    ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
    return ledger


@pytest.fixture
def waiting(url: str, clock: ManualClock, time: ManualClock) -> Iterator[Ledger]:
    """A ledger that waits."""
    with opened(url, clock, patient(time)) as ledger:
        yield ledger


@pytest.fixture
def cuts(waiting: Ledger, monkeypatch: pytest.MonkeyPatch) -> Cuts:
    return Cuts(monkeypatch)


@pytest.fixture
def other(url: str, clock: ManualClock, waiting: Ledger) -> Iterator[Ledger]:
    """The same ledger, as another process has it."""
    with Ledger.open(url, clock=clock, database_clock=clock) as ledger:
        yield ledger


@pytest.fixture
def undisturbed(new_url: NewUrl, clock: ManualClock) -> Iterator[Ledger]:
    """Another ledger, on the same kind of database."""
    with opened(new_url(), clock, Timeouts()) as ledger:
        yield ledger


def _all_of(table: str) -> str:
    return f'SELECT * FROM "{table}"'  # noqa: S608  (a name of Headrace's own)


def content(ledger: Ledger) -> dict[str, list[dict[str, Any]]]:
    """Everything in a ledger that means something, as the database has it.

    Without SQLAlchemy's statements, which each ledger would compile again.
    """
    with ledger.batches.lend() as connection:
        rows = {
            table.name: [
                {name: value for name, value in row.items() if name not in _NUMBERS}
                for row in connection.exec_driver_sql(_all_of(table.name)).mappings()
            ]
            for table in metadata.sorted_tables
        }
    return {name: sorted(found, key=repr) for name, found in rows.items()}


@pytest.mark.parametrize(
    "moments",
    [[Moment.BEFORE], [Moment.AFTER], [Moment.AFTER, Moment.AFTER]],
    ids=" and ".join,
)
@pytest.mark.parametrize("name", WRITES)
def test_a_write_whose_connection_is_cut_is_as_one_that_was_not(
    waiting: Ledger, cuts: Cuts, undisturbed: Ledger, name: str, moments: list[Moment]
) -> None:
    write = WRITES[name]
    for ledger in (undisturbed, waiting):
        write.prepare(ledger)
    cuts.plan(*moments)
    assert write.call(waiting) == write.call(undisturbed)
    assert cuts.are_over
    assert content(waiting) == content(undisturbed)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_without_a_timeout_raises_when_its_connection_is_cut(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, time: ManualClock, name: str
) -> None:
    write = WRITES[name]
    write.prepare(ledger)
    before = content(ledger)
    Cuts(monkeypatch).plan(Moment.BEFORE)
    with pytest.raises(LedgerError) as caught:
        write.call(ledger)
    assert type(caught.value) is LedgerError
    assert time.monotonic() == 0
    assert content(ledger) == before


def test_prune_deletes_as_much_though_its_connection_is_cut(
    clock: ManualClock, waiting: Ledger, cuts: Cuts
) -> None:
    for number in range(3):
        waiting.batches.succeed(waiting.batches.begin(batch_number(number)).batch_key)
        report_sample(waiting, a_sample(clock(), 100.0 + number))
    cuts.plan(Moment.AFTER, Moment.BEFORE)
    waiting.history.prune(clock() + 1_000)
    found = content(waiting)
    assert [row["batch_key"] for row in found["batch"]] == [batch_number(2).batch_key]
    assert [row["until_offset"] for row in found["pruned"]] == [20]
    assert found["rate"] == []


def test_what_another_has_made_of_a_batch_meanwhile_is_left_alone(
    waiting: Ledger, other: Ledger, cuts: Cuts, time: ManualClock
) -> None:
    owned(waiting)
    cuts.plan(Moment.AFTER)
    time.on_sleep = lambda: other.batches.claim(KEY, "other", LEASE_MS)
    assert not waiting.batches.fail(KEY, ERROR, owner="me")
    batch = other.batches.get(KEY)
    assert batch is not None
    assert (batch.status, batch.owner, batch.attempts) == (Status.BACKFILLING, "other", 1)


@pytest.mark.parametrize("moment", Moment)
def test_of_two_that_end_a_batch_in_an_outage_one_gets_true(
    waiting: Ledger, other: Ledger, cuts: Cuts, time: ManualClock, moment: Moment
) -> None:
    begun(waiting)
    cuts.plan(moment)
    others: list[bool] = []
    time.on_sleep = lambda: others.append(other.batches.succeed(KEY))
    assert waiting.batches.succeed(KEY) == (moment is Moment.AFTER)
    assert others == [moment is Moment.BEFORE]


@pytest.mark.parametrize(
    "name", ["attach an owner", "retry", "renew", "take", "take from one who is gone"]
)
def test_a_lease_begins_when_the_database_is_back(
    clock: ManualClock, waiting: Ledger, cuts: Cuts, time: ManualClock, name: str
) -> None:
    def pass_by() -> None:
        clock.now_ms += 5 * LEASE_MS

    write = WRITES[name]
    write.prepare(waiting)
    cuts.plan(Moment.BEFORE)
    time.on_sleep = pass_by
    write.call(waiting)
    for batch in waiting.batches.newest("orders"):
        assert batch.lease_until_ms is not None
        assert batch.lease_until_ms >= clock() + LEASE_MS


def test_a_transaction_that_is_cut_raises_and_is_not_made_again(
    waiting: Ledger, cuts: Cuts, time: ManualClock
) -> None:
    owned(waiting)
    before = content(waiting)
    cuts.plan(Moment.BEFORE)
    with pytest.raises(LedgerError), waiting.batches.transaction(KEY, "me") as connection:
        connection.execute(update(gate).values(source="the sink's"))
    assert time.monotonic() == 0
    assert content(waiting) == before
