"""Batches that are isolated, with a real ledger, and with crashes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PythonException
from tests.execution.events import planned
from tests.execution.readers import (
    AWAY,
    FakeReader,
    KeyedSink,
    Killed,
    Place,
    Poisoned,
    frame,
    places,
)
from tests.services.ledgers import new_ledger

from headrace.backfill import LEASE_MS, MAX_BACKFILLS
from headrace.control import EstimatorSettings, OffsetRange
from headrace.errors import BrokerError
from headrace.execution.batch import Handler
from headrace.execution.executor import BatchExecutor
from headrace.execution.policy import OnFailure, isolate, parse_on_failure, retry
from headrace.ledger import Attached, BatchRecord, Ledger, LetterStatus, Status
from headrace.processes import new_owner

WHOLE = (OffsetRange("orders-topic", 0, 0, 8), OffsetRange("orders-topic", 1, 100, 105))
EVERYTHING = places(WHOLE)


@contextmanager
def open_ledger(folder: Path) -> Iterator[Ledger]:
    with new_ledger(f"sqlite:///{folder}/headrace.db") as ledger:
        ledger.declare_gate(
            "orders", interval_ms=1_000, source="kafka", estimator=EstimatorSettings().to_text()
        )
        yield ledger


def runner_of(
    ledger: Ledger,
    owner: str,
    handler: Handler,
    runs: int = 1_000,
    *,
    policy: OnFailure | None = None,
    stopped: Callable[[], bool] = lambda: False,
    max_backfills: int = MAX_BACKFILLS,
    is_away: Callable[[list[Place]], bool] = lambda _places: False,
) -> BatchExecutor:
    return BatchExecutor(
        ledger,
        owner,
        handler,
        policy=policy or isolate(max_runs=runs),
        reader=FakeReader(is_away=is_away),
        turn=nullcontext(),
        stopped=stopped,
        max_backfills=max_backfills,
    )


def run_live(
    ledger: Ledger, handler: Handler, runs: int = 1_000, *, gone: str | None = None
) -> str:
    """Begin the batch, or take it up again after a crash, and run it."""
    owner = new_owner()
    batch = ledger.begin(planned("orders", *WHOLE))
    owned = ledger.attach(batch.schedule_id, 7, owner=owner, lease_ms=LEASE_MS, gone=gone)
    if owned is not None:
        runner_of(ledger, owner, handler, runs).run_live(frame(WHOLE), owned, 7)
    return owner


def attached(ledger: Ledger, key: str, owner: str, *, gone: str | None = None) -> Attached:
    found = ledger.attach(key, 7, owner=owner, lease_ms=LEASE_MS, gone=gone)
    assert found is not None
    return found


def leaves(ledger: Ledger) -> list[BatchRecord]:
    """The rows that say what became of the records."""
    rows = ledger.batches("orders", limit=10_000)
    wholes = {row.parent for row in rows}
    return [row for row in rows if row.schedule_id not in wholes]


def offsets_of(ledger: Ledger, status: Status) -> list[Place]:
    return sorted(
        place
        for leaf in leaves(ledger)
        if leaf.status is status
        for place in places([each.offsets for each in ledger.ranges(leaf.schedule_id)])
    )


def letters(ledger: Ledger) -> list[Place]:
    found = ledger.dead_letters("orders", limit=1_000)
    return sorted((each.letter.partition, each.letter.offset) for each in found)


bad_records = st.sets(st.sampled_from(EVERYTHING), min_size=1, max_size=6)


@given(bad_records)
@settings(max_examples=6)
def test_what_cannot_be_processed_is_kept_and_all_else_is_processed_once(bad: set[Place]) -> None:
    with TemporaryDirectory() as folder, open_ledger(Path(folder)) as ledger:
        sink = KeyedSink(bad)
        run_live(ledger, sink)
        assert sink.everything == sorted(set(EVERYTHING) - bad)
        assert letters(ledger) == sorted(bad) == offsets_of(ledger, Status.DEAD)
        assert offsets_of(ledger, Status.SUCCESS) == sink.everything
        assert len(leaves(ledger)) < len(ledger.batches("orders")), "nothing was split"
        assert {row.owner for row in ledger.batches("orders", limit=10_000)} == {None}


@given(bad_records, st.lists(st.integers(1, 8), min_size=1, max_size=4), st.data())
@settings(max_examples=20)
def test_a_crash_at_any_call_leaves_nothing_out_and_doubles_nothing(
    bad: set[Place], kills: list[int], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder, open_ledger(Path(folder)) as ledger:
        kept: dict[str, list[Place]] = {}
        crashed: str | None = None
        for kill_at in [*kills, None]:
            sink = KeyedSink(bad, kill_at, kept=kept)
            begun = ledger.begin(planned("orders", *WHOLE))
            if begun.status is Status.SUCCESS:
                break
            owner = owner_that_is_gone()
            owned = attached(ledger, begun.schedule_id, owner, gone=crashed)
            with suppress(Killed):
                runner_of(ledger, owner, sink).run_live(frame(WHOLE), owned, 7)
            crashed = owner
            # Some of it can be processed in the next life.
            bad = {place for place in bad if data.draw(st.booleans())}
        backfill(ledger, KeyedSink(bad, kept=kept))
        processed = [place for places_ in kept.values() for place in places_]
        assert sorted(processed + letters(ledger)) == EVERYTHING
        assert offsets_of(ledger, Status.SUCCESS) == sorted(processed)
        assert offsets_of(ledger, Status.DEAD) == letters(ledger)


def backfill(ledger: Ledger, sink: KeyedSink) -> None:
    """Run what has failed until nothing has."""
    runner = runner_of(ledger, "a backfill", sink)
    while failed := ledger.failed("orders"):
        taken = ledger.take(failed[0].schedule_id, "a backfill", LEASE_MS)
        assert taken is not None
        error = runner.run(taken)
        if error is None:
            ledger.backfilled(taken.schedule_id, "a backfill")
        else:
            ledger.give_back(taken.schedule_id, "a backfill", error, max_backfills=MAX_BACKFILLS)


def test_a_batch_that_a_crash_cut_short_after_the_sink_is_not_divided_for_a_passing_reason(
    tmp_path: Path,
) -> None:
    with open_ledger(tmp_path) as ledger:
        sink = KeyedSink(kill_at=1)
        planned_batch = planned("orders", *WHOLE)
        first = owner_that_is_gone()
        key = ledger.begin(planned_batch).schedule_id
        owned = attached(ledger, key, first)
        with suppress(Killed):
            runner_of(ledger, first, sink).run_live(frame(WHOLE), owned, 7)
        sink.bad = {(0, 3)}  # for a moment
        ledger.begin(planned_batch)
        owned = attached(ledger, key, "me", gone=first)
        runner_of(ledger, "me", sink).run_live(frame(WHOLE), owned, 7)
        assert row_of(ledger, key).status is Status.FAILED
        sink.bad = ()
        backfill(ledger, sink)
        assert sink.everything == EVERYTHING
        assert row_of(ledger, key).status is Status.SUCCESS


@pytest.mark.parametrize(
    "live",
    [
        [parse_on_failure("defer")],
        [parse_on_failure("stop"), parse_on_failure("defer")],
        [retry(2, "1 ms", then="defer")],
    ],
)
def test_what_has_only_raised_is_isolated_by_the_first_backfill_that_is_to_do_so(
    tmp_path: Path, live: list[OnFailure]
) -> None:
    bad = {(0, 3), (1, 104)}
    with open_ledger(tmp_path) as ledger:
        sink = KeyedSink(bad)
        for policy in live:
            key = ledger.begin(planned("orders", *WHOLE)).schedule_id
            owned = attached(ledger, key, "me")
            runner = runner_of(ledger, "me", sink, policy=policy)
            with suppress(Poisoned):
                runner.run_live(frame(WHOLE), owned, 7)
            assert row_of(ledger, key).status is Status.FAILED
        taken = ledger.take(key, "by hand", LEASE_MS)
        assert taken is not None
        deferring = runner_of(ledger, "by hand", sink, policy=parse_on_failure("defer"))
        error = deferring.run(taken)
        assert error is not None
        ledger.give_back(key, "by hand", error, max_backfills=MAX_BACKFILLS)
        taken = ledger.take(key, "a backfill", LEASE_MS)
        assert taken is not None
        assert runner_of(ledger, "a backfill", sink).run(taken) is None
        assert letters(ledger) == sorted(bad)
        assert sink.everything == sorted(set(EVERYTHING) - bad)


def test_what_was_cut_short_is_isolated_by_the_last_backfill_that_there_may_be(
    tmp_path: Path,
) -> None:
    with open_ledger(tmp_path) as ledger:
        key = ledger.begin(planned("orders", *WHOLE)).schedule_id
        ledger.begin(planned("orders", *WHOLE))
        ledger.fail(key, ValueError("no"))
        assert row_of(ledger, key).cut_short
        sink = KeyedSink({(0, 3)})
        for number, is_divided in ((1, False), (2, True)):
            taken = ledger.take(key, "by hand", LEASE_MS)
            assert taken is not None
            runner = runner_of(ledger, "by hand", sink, max_backfills=2)
            error = runner.run(taken)
            assert (error is None) == is_divided, number
            if error is not None:
                ledger.give_back(key, "by hand", error, max_backfills=2)
        assert letters(ledger) == [(0, 3)]


def test_a_backfill_isolates_nothing_while_its_query_is_stopped(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        key = ledger.begin(planned("orders", *WHOLE)).schedule_id
        ledger.fail(key, ValueError("no"))
        taken = ledger.take(key, "beside", LEASE_MS)
        assert taken is not None
        sink = KeyedSink({(0, 3)})
        runner = runner_of(ledger, "beside", sink, stopped=lambda: True)
        assert isinstance(runner.run(taken), Poisoned)
        assert ledger.parts(key) == ()
        between = runner_of(ledger, "beside", sink, stopped=lambda: sink.calls > 3)
        assert isinstance(between.run(taken), Poisoned)
        assert letters(ledger) == []
        assert row_of(ledger, key).status is Status.BACKFILLING
        assert {part.status for part in ledger.parts(key)} <= {Status.FAILED, Status.SUCCESS}


def row_of(ledger: Ledger, key: str) -> BatchRecord:
    found = ledger.batch(key)
    assert found is not None
    return found


def owner_that_is_gone() -> str:
    """An owner of this machine, whose process has ended."""
    machine, _process, rest = new_owner().split(":", 2)
    return f"{machine}:{2**31}:{rest}"


@pytest.mark.parametrize("runs", [1, 2, 3, 5, 8])
def test_what_the_budget_leaves_is_failed_and_can_be_backfilled(tmp_path: Path, runs: int) -> None:
    bad = {(0, 5), (1, 103)}
    with open_ledger(tmp_path) as ledger:
        sink = KeyedSink(bad)
        run_live(ledger, sink, runs)
        assert sink.calls == 1 + runs
        left = offsets_of(ledger, Status.FAILED)
        assert left != []
        assert sorted(sink.everything + left + letters(ledger)) == EVERYTHING
        backfiller = runner_of(ledger, "a backfill", sink)
        for failed in ledger.failed("orders"):
            assert failed.error is not None
            taken = ledger.take(failed.schedule_id, "a backfill", LEASE_MS)
            assert taken is not None
            if backfiller.run(taken) is None:
                ledger.backfilled(failed.schedule_id, "a backfill")
        assert offsets_of(ledger, Status.FAILED) == []
        assert letters(ledger) == sorted(bad)
        assert sink.everything == sorted(set(EVERYTHING) - bad)
        assert {batch.kind for batch in sink.batches} == {"live", "backfill"}


def test_a_source_that_is_away_while_a_record_stands_alone_makes_no_dead_letter(
    tmp_path: Path,
) -> None:
    tried: list[list[Place]] = []

    def is_away(wanted: list[Place]) -> bool:
        if len(wanted) == 1:
            tried.append(wanted)
        return len(wanted) == 1

    with open_ledger(tmp_path) as ledger:
        sink = KeyedSink({(0, 3)})
        key = ledger.begin(planned("orders", *WHOLE)).schedule_id
        runner = runner_of(ledger, "me", sink, is_away=is_away)
        runner.run_live(frame(WHOLE), attached(ledger, key, "me"), 7)
        assert letters(ledger) == []
        assert len(tried) == 1, "nothing more is asked of a source that is away"
        left = offsets_of(ledger, Status.FAILED)
        assert sorted(sink.everything + left) == EVERYTHING
        reasons = {row.error.error_class for row in ledger.failed("orders") if row.error}
        assert reasons == {"headrace.errors.BrokerError"}
        for failed in ledger.failed("orders"):  # it is back
            taken = ledger.take(failed.schedule_id, "a backfill", LEASE_MS)
            assert taken is not None
            assert runner_of(ledger, "a backfill", sink).run(taken) is None
            ledger.backfilled(failed.schedule_id, "a backfill")
        assert letters(ledger) == [(0, 3)]
        assert sink.everything == sorted(set(EVERYTHING) - {(0, 3)})


def test_a_batch_whose_own_read_fails_since_its_source_is_away_is_deferred_whole(
    tmp_path: Path,
) -> None:
    calls = []

    def handle(_df: object, _batch: object) -> None:
        calls.append(1)
        raise PythonException(message=AWAY)

    with open_ledger(tmp_path) as ledger:
        key = ledger.begin(planned("orders", *WHOLE)).schedule_id
        runner_of(ledger, "me", handle).run_live(frame(WHOLE), attached(ledger, key, "me"), 7)
        assert (len(calls), ledger.parts(key)) == (1, ())
        assert row_of(ledger, key).status is Status.FAILED
        taken = ledger.take(key, "a backfill", LEASE_MS)
        assert taken is not None
        error = runner_of(ledger, "a backfill", handle).run(taken)
        assert isinstance(error, BrokerError)
        assert (len(calls), ledger.parts(key)) == (2, ())


def test_a_gap_that_fails_alone_is_no_record_and_no_dead_letter(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        owner = new_owner()
        batch = ledger.begin(planned("orders", *WHOLE))
        owned = attached(ledger, batch.schedule_id, owner)
        runner = BatchExecutor(
            ledger,
            owner,
            KeyedSink({(0, 3)}),
            policy=parse_on_failure("isolate"),
            reader=FakeReader(gaps={(0, 3)}),
            turn=nullcontext(),
        )
        runner.run_live(frame(WHOLE), owned, 7)
        assert letters(ledger) == []
        assert offsets_of(ledger, Status.SUCCESS) == EVERYTHING


def test_a_record_alone_in_its_batch_is_kept_without_a_split(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        owner = new_owner()
        one = OffsetRange("orders-topic", 0, 5, 6)
        batch = ledger.begin(planned("orders", one))
        owned = attached(ledger, batch.schedule_id, owner)
        runner_of(ledger, owner, KeyedSink({(0, 5)})).run_live(frame([one]), owned, 7)
        (row,) = ledger.batches("orders")
        (letter,) = ledger.dead_letters("orders")
        assert row.status is Status.DEAD
        assert (letter.schedule_id, letter.status) == (row.schedule_id, LetterStatus.WAITING)
        assert letter.letter.error.message == "cannot keep (0, 5)"


def test_what_is_raised_since_the_query_is_stopped_is_no_records_fault(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        sink = KeyedSink({(0, 3)})
        owner = new_owner()
        batch = ledger.begin(planned("orders", *WHOLE))
        owned = attached(ledger, batch.schedule_id, owner)
        runner = BatchExecutor(
            ledger,
            owner,
            sink,
            policy=isolate(),
            reader=FakeReader(),
            stopped=lambda: sink.calls > 2,
            turn=nullcontext(),
        )
        with pytest.raises(Poisoned):
            runner.run_live(frame(WHOLE), owned, 7)
        assert sink.calls == 3
        assert letters(ledger) == []
        assert offsets_of(ledger, Status.FAILED) == EVERYTHING
        sink.bad = ()
        run_live(ledger, sink)
        assert sink.everything == EVERYTHING
        assert offsets_of(ledger, Status.SUCCESS) == EVERYTHING
