"""The wrapped handler, called as Spark's foreachBatch calls it, with a real ledger."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from tests.execution.events import planned
from tests.execution.readers import FakeReader

from headrace.backfill import LEASE_MS
from headrace.control import OffsetRange
from headrace.errors import LedgerError
from headrace.execution import Batch
from headrace.execution.executor import BatchExecutor
from headrace.execution.gate_state import state_of
from headrace.execution.handler import GatedHandler
from headrace.execution.policy import STOP, retry
from headrace.ledger import BatchRecord, ErrorReport, Ledger, Status

FIRST = OffsetRange("orders-topic", 0, 0, 100)
SECOND = OffsetRange("orders-topic", 0, 100, 200)


class FullError(Exception):
    """What a sink raises."""


class Sink:
    """A handler that keeps what it was told, and fails when told to."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.error: Exception | None = None

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        self.batches.append(batch)
        if self.error is not None:
            raise self.error


@dataclass
class Query:
    """The query whose batch a data frame is, as far as a handler can ask for it."""

    id: str = "a query"

    def data_frame(self) -> DataFrame:
        context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": self.id}.get)
        return cast(DataFrame, SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context)))


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def df() -> DataFrame:
    return Query().data_frame()


@pytest.fixture
def handler(ledger: Ledger, ledger_url: str, sink: Sink) -> GatedHandler:
    return GatedHandler("orders", ledger_url, sink)


def begin(ledger: Ledger, *ranges: OffsetRange, gate: str = "orders", run: str = "run") -> str:
    return ledger.begin(planned(gate, *ranges, run_id=run)).schedule_id


def row(ledger: Ledger, batch: str) -> BatchRecord:
    found = ledger.batch(batch)
    assert found is not None
    return found


def test_a_handler_is_told_its_batchs_key_ranges_attempt_and_kind(
    ledger: Ledger, handler: GatedHandler, sink: Sink, df: DataFrame
) -> None:
    other = OffsetRange("orders-topic", 1, 5, 6)
    key = begin(ledger, other, FIRST)
    handler(df, 0)
    assert sink.batches == [Batch(key, 0, (FIRST, other), 1, "live", 1)]


def test_a_batch_is_in_progress_while_it_is_handled_and_a_success_after_arrow_d(
    ledger: Ledger, ledger_url: str, df: DataFrame
) -> None:
    seen = []

    def look(_df: DataFrame, batch: Batch) -> None:
        seen.append(row(ledger, batch.key))

    handler = GatedHandler("orders", ledger_url, look)
    key = begin(ledger, FIRST)
    handler(df, 7)
    assert [(each.status, each.query_batch_id) for each in seen] == [(Status.IN_PROGRESS, 7)]
    assert seen[0].start_time_ms is not None
    assert row(ledger, key).status is Status.SUCCESS


def test_an_exception_fails_the_batch_and_reaches_spark_arrow_e(
    ledger: Ledger, handler: GatedHandler, sink: Sink, df: DataFrame
) -> None:
    sink.error = FullError("no space left")
    key = begin(ledger, FIRST)
    with pytest.raises(FullError):
        handler(df, 0)
    failed = row(ledger, key)
    assert failed.status is Status.FAILED
    assert failed.error is not None
    assert failed.error.error_class.endswith("FullError")
    assert failed.error.message == "no space left"
    assert "raise self.error" in failed.error.trace


def test_a_batch_that_failed_is_run_again_with_the_same_key_arrow_c(
    ledger: Ledger, ledger_url: str, handler: GatedHandler, sink: Sink, df: DataFrame
) -> None:
    sink.error = FullError()
    key = begin(ledger, FIRST)
    with pytest.raises(FullError):
        handler(df, 0)
    sink.error = None
    restarted = GatedHandler("orders", ledger_url, sink)
    begin(ledger, FIRST)
    restarted(df, 0)
    assert sink.batches == [Batch(key, 0, (FIRST,), call, "live", call) for call in (1, 2)]
    assert row(ledger, key).status is Status.SUCCESS
    assert row(ledger, key).error is None


def test_a_batch_that_a_crash_interrupted_is_run_again_with_the_same_key_arrow_b(
    ledger: Ledger, ledger_url: str, sink: Sink, df: DataFrame
) -> None:
    key = begin(ledger, FIRST)
    ledger.attach(key, 0)
    restarted = GatedHandler("orders", ledger_url, sink)
    begin(ledger, FIRST)
    restarted(df, 0)
    assert sink.batches == [Batch(key, 0, (FIRST,), 2, "live", 2)]


def test_a_batch_that_succeeded_just_before_a_crash_is_not_handed_out_again(
    ledger: Ledger, ledger_url: str, handler: GatedHandler, sink: Sink, df: DataFrame
) -> None:
    begin(ledger, FIRST)
    handler(df, 0)
    restarted = GatedHandler("orders", ledger_url, sink)
    begin(ledger, FIRST)
    restarted(df, 0)
    assert len(sink.batches) == 1
    begin(ledger, SECOND)
    restarted(df, 1)
    assert [batch.ranges for batch in sink.batches] == [(FIRST,), (SECOND,)]


def test_a_batch_in_which_the_gate_has_nothing_is_handed_out_without_ranges(
    ledger: Ledger, handler: GatedHandler, sink: Sink, df: DataFrame
) -> None:
    handler(df, 0)
    key = begin(ledger, FIRST)
    handler(df, 1)
    handler(df, 2)
    nothing, batch, nothing_again = sink.batches
    assert (nothing.id, nothing.ranges, nothing.attempt, nothing.kind) == (0, (), 1, "live")
    assert batch.key == key
    assert (nothing_again.id, nothing_again.ranges) == (2, ())
    assert len({each.key for each in sink.batches}) == 3
    assert [each.schedule_id for each in ledger.batches("orders")] == [key]


def test_the_key_of_a_batch_without_ranges_is_its_querys_own_and_stays_the_same(
    ledger: Ledger, handler: GatedHandler, sink: Sink, ledger_url: str
) -> None:
    query, fresh_checkpoint = Query("one"), Query("another")
    handler(query.data_frame(), 3)
    GatedHandler("orders", ledger_url, sink)(query.data_frame(), 3)
    handler(fresh_checkpoint.data_frame(), 3)
    GatedHandler("payments", ledger_url, sink)(query.data_frame(), 3)
    first, again, *others = [batch.key for batch in sink.batches]
    assert first == again
    assert len({first, *others}) == 3


def test_what_another_checkpoint_left_in_progress_is_not_taken_for_an_empty_batch(
    ledger: Ledger, ledger_url: str, sink: Sink, df: DataFrame
) -> None:
    # A crash; then the checkpoint is deleted, and the query begins anew at the latest offsets.
    left = begin(ledger, FIRST, run="the run that crashed")
    ledger.attach(left, 0)
    restarted = GatedHandler("orders", ledger_url, sink)
    restarted(df, 0)
    assert sink.batches[0].ranges == ()
    assert row(ledger, left).status is Status.IN_PROGRESS
    key = begin(ledger, SECOND, run="a new run")
    restarted(df, 1)
    assert sink.batches[1] == Batch(key, 1, (SECOND,), 1, "live", 3)


def test_a_success_of_another_checkpoint_is_not_taken_for_the_batch_of_its_number(
    ledger: Ledger, ledger_url: str, handler: GatedHandler, sink: Sink, df: DataFrame
) -> None:
    begin(ledger, FIRST, run="the first checkpoint")
    handler(df, 0)
    # The checkpoint is deleted, and in batch 0 only another gate of the query has something.
    GatedHandler("orders", ledger_url, sink)(df, 0)
    assert [batch.ranges for batch in sink.batches] == [(FIRST,), ()]


def test_a_batch_of_an_older_checkpoint_is_known_though_it_is_not_the_newest(
    ledger: Ledger, ledger_url: str, sink: Sink, df: DataFrame
) -> None:
    left = begin(ledger, FIRST, run="a checkpoint of which a copy was kept")
    begin(ledger, SECOND, run="another")
    restarted = GatedHandler("orders", ledger_url, sink)
    begin(ledger, FIRST, run="a checkpoint of which a copy was kept")
    restarted(df, 0)
    assert sink.batches == [Batch(left, 0, (FIRST,), 2, "live", 1)]


def test_what_an_empty_batch_raises_reaches_spark_too(
    ledger: Ledger, handler: GatedHandler, sink: Sink, df: DataFrame
) -> None:
    key = begin(ledger, FIRST)
    handler(df, 0)
    sink.error = FullError()
    with pytest.raises(FullError):
        handler(df, 1)
    assert row(ledger, key).status is Status.SUCCESS


def stopped_query() -> StreamingQuery:
    return cast(StreamingQuery, SimpleNamespace(isActive=False))


def test_a_stopped_query_does_not_wait_for_another_process(
    ledger: Ledger, handler: GatedHandler, sink: Sink, df: DataFrame
) -> None:
    key = begin(ledger, FIRST)
    ledger.attach(key, 0, owner="another machine", lease_ms=60_000)
    handler.follow(stopped_query(), None)
    with pytest.raises(LedgerError, match=f"stopped before it could take over batch {key}"):
        handler(df, 0)
    assert sink.batches == []
    assert row(ledger, key).owner == "another machine"


def test_a_stopped_query_does_not_wait_for_its_next_retry(
    ledger: Ledger, ledger_url: str, sink: Sink, df: DataFrame
) -> None:
    waits: list[float] = []

    def stop_in_the_third(wait_s: float) -> None:
        waits.append(wait_s)
        if len(waits) == 3:
            retrying.follow(stopped_query(), None)

    policy = retry(5, "1 hour", then="defer")
    retrying = GatedHandler("orders", ledger_url, sink, policy=policy, sleep=stop_in_the_third)
    sink.error = FullError("no space left")
    key = begin(ledger, FIRST)
    with pytest.raises(FullError):
        retrying(df, 0)
    assert len(waits) == 3
    assert len(sink.batches) == 1
    assert row(ledger, key).status is Status.FAILED


def test_a_row_that_somebody_else_has_settled_stays_as_they_left_it(
    ledger: Ledger, ledger_url: str, df: DataFrame
) -> None:
    def settled_meanwhile(_df: DataFrame, batch: Batch) -> None:
        assert ledger.fail(batch.key, ErrorReport("Lost", "its owner was thought dead", ""))

    handler = GatedHandler("orders", ledger_url, settled_meanwhile)
    key = begin(ledger, FIRST)
    handler(df, 0)
    assert row(ledger, key).status is Status.FAILED


def test_a_batch_that_waited_for_another_process_teaches_nothing(
    ledger: Ledger, ledger_url: str, sink: Sink, df: DataFrame
) -> None:
    def it_lets_go(_seconds: float) -> None:
        assert ledger.attach(key, 7, owner="elsewhere:1:1/run", lease_ms=0)

    handler = GatedHandler("orders", ledger_url, sink, sleep=it_lets_go)
    key = begin(ledger, FIRST)
    assert ledger.attach(key, 7, owner="elsewhere:1:1/run", lease_ms=30_000)
    handler(df, 7)
    assert len(sink.batches) == 1
    assert not state_of(ledger_url, "orders").batch_ended(key, 0, 1).went_through
    at_once = begin(ledger, SECOND)
    handler(df, 8)
    assert state_of(ledger_url, "orders").batch_ended(at_once, 0, 1).went_through


def test_a_run_has_a_number_above_that_of_one_that_ended_since_it_was_counted(
    ledger: Ledger, ledger_url: str, sink: Sink, df: DataFrame
) -> None:
    handler = GatedHandler("orders", ledger_url, sink, reader=FakeReader())
    failed, live = begin(ledger, FIRST), begin(ledger, SECOND)
    ledger.fail(failed, FullError())
    owned = ledger.attach(live, 0, owner="me", lease_ms=LEASE_MS)
    taken = ledger.take(failed, "a backfill", LEASE_MS)
    assert owned is not None
    assert taken is not None
    assert handler.executor("a backfill").run(taken) is None
    handler.executor("me").run_live(df, owned, 0)
    backfilled, last = sink.batches
    assert (backfilled.key, last.key) == (failed, live)
    assert backfilled.sequence < last.sequence


@pytest.mark.parametrize("was_free", [True, False, None])
def test_a_run_that_may_have_waited_for_its_turn_is_counted_when_it_comes(
    ledger: Ledger, sink: Sink, df: DataFrame, was_free: bool | None
) -> None:
    elsewhere: list[int] = []

    @contextmanager
    def turn() -> Iterator[bool | None]:
        if not was_free:
            elsewhere.append(ledger.next_sequence("orders"))
        yield was_free

    key = begin(ledger, FIRST)
    owned = ledger.attach(key, 0, owner="me", lease_ms=LEASE_MS)
    assert owned is not None
    BatchExecutor(ledger, "me", sink, policy=STOP, reader=None, turn=turn()).run_live(df, owned, 0)
    (batch,) = sink.batches
    assert batch.sequence == 1 if was_free else batch.sequence > elsewhere[0]
