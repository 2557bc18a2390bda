"""Record of a query's end in the ledger: stopped on purpose, ended by its handler, or refused."""

import functools
import json
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest.mock import create_autospec

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import Connection
from tests.gate.execution.events import planned
from tests.gate.execution.readers import READER
from tests.gate.ledger.samples import stored
from tests.operate.cli.outcomes import invoke

from headrace.core.ranges import OffsetRange
from headrace.errors import HandlerExitError, OptionError
from headrace.gate.backfill.monitor import Failed
from headrace.gate.backfill.schedule import UnlimitedBudget
from headrace.gate.backfill.scheduler import BackfillScheduler, OwnerSettings
from headrace.gate.execution.batch import (
    Batch,
    Handler,
    HandlerTransaction,
    bind,
    call_handler,
    check_handler,
    renumber,
)
from headrace.gate.execution.call import RunContext
from headrace.gate.execution.gate import Gate
from headrace.gate.execution.gate_state import shared_ledger
from headrace.gate.execution.handler import GatedHandler
from headrace.gate.execution.policy import OnFailure, parse_on_failure, retry
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

FIRST = OffsetRange("orders-topic", 0, 0, 8)
SECOND = OffsetRange("orders-topic", 0, 8, 16)
POLICIES = [parse_on_failure(each) for each in ("stop", "defer", "isolate")]
DF = READER.frame([FIRST])


@dataclass
class Sink:
    """Is stopped, or raises, in its calls of these numbers."""

    raises: dict[int, BaseException] = field(default_factory=dict)
    stop_in: int = 0
    active: bool = True
    batches: list[Batch] = field(default_factory=list)

    def __call__(self, _df: DataFrame, batch: Batch) -> None:
        self.batches.append(batch)
        if len(self.batches) == self.stop_in:
            self.active = False
            raise InterruptedError("cut off")
        error = self.raises.get(len(self.batches))
        if error is not None:
            raise error

    @property
    def query(self) -> StreamingQuery:
        active = property(lambda _query: self.active)
        others = {"runId": "a run", "exception": lambda _query: None}
        return cast(StreamingQuery, type("Query", (), {"isActive": active, **others})())


def gated(url: str, sink: Sink, policy: OnFailure = POLICIES[0]) -> GatedHandler:
    context = RunContext(
        ledger=shared_ledger(url),
        handler=sink,
        policy=policy,
        reader=READER,
        sleep=lambda _s: None,
    )
    handler = GatedHandler("orders", context)
    handler.follow(sink.query, None)
    return handler


def begin(ledger: Ledger, offsets: OffsetRange = FIRST, run: str = "run") -> str:
    return ledger.batches.begin(planned("orders", offsets, checkpoint_id=run)).batch_key


def told(url: str, *arguments: str) -> list[dict[str, Any]]:
    answer = invoke(url, *arguments, "--json").stdout
    return [json.loads(line) for line in answer.splitlines()]


@pytest.mark.integration
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.last)
def test_a_query_that_is_stopped_on_purpose_is_no_incident_and_runs_the_batch_again(
    ledger: Ledger, ledger_url: str, policy: OnFailure
) -> None:
    sink = Sink(stop_in=1)
    handler = gated(ledger_url, sink, policy)
    key = begin(ledger)
    with pytest.raises(InterruptedError):
        handler(DF, 0)

    failures = invoke(ledger_url, "failures")
    assert (failures.exit_code, told(ledger_url, "failures")) == (0, [])
    assert "Nothing is unresolved" in failures.stdout
    batches = invoke(ledger_url, "batches", width=160).stdout
    assert "interrupted" in batches
    assert "the next start runs the batch again" in batches
    assert "failed" not in batches
    assert "cut off" in invoke(ledger_url, "batches", key).stdout  # the trace is kept
    assert [each["interrupted"] for each in told(ledger_url, "batches")] == [True]
    status = invoke(ledger_url, "status", "orders")
    assert status.exit_code == 0
    assert "Interrupted: the query was stopped" in status.stdout
    assert "InterruptedError" not in status.stdout
    (snapshot,) = (each for each in told(ledger_url, "status") if each["gate"] == "orders")
    assert (snapshot["state"], snapshot["failed"], snapshot["error"]) == ("interrupted", 0, None)

    sink.active = True
    again = gated(ledger_url, sink, policy)
    assert begin(ledger) == key
    again(DF, 0)
    assert [batch.key for batch in sink.batches] == [key, key]
    assert stored(ledger, key).status is Status.SUCCESS
    assert told(ledger_url, "batches")[0]["interrupted"] is False


def test_what_was_interrupted_in_parts_is_no_incident_either(
    ledger: Ledger, ledger_url: str
) -> None:
    sink = Sink(raises={1: ValueError("no")}, stop_in=3)
    handler = gated(ledger_url, sink, POLICIES[2])
    begin(ledger)
    with pytest.raises(InterruptedError):
        handler(DF, 0)
    (batch,) = ledger.batches.newest()
    assert batch.progress is not None
    assert invoke(ledger_url, "failures").exit_code == 0
    sink.active, sink.stop_in = True, 0
    again = gated(ledger_url, sink, POLICIES[2])
    begin(ledger)
    again(DF, 0)
    assert {batch.status for batch in ledger.batches.newest()} == {Status.SUCCESS}


def test_a_batch_that_the_next_start_does_not_run_has_failed_and_is_backfilled(
    ledger: Ledger, ledger_url: str
) -> None:
    sink = Sink(stop_in=1)
    handler = gated(ledger_url, sink)
    key = begin(ledger)
    with pytest.raises(InterruptedError):
        handler(DF, 0)
    # To whoever backfills by hand it is there from the beginning.
    assert [batch.batch_key for batch in ledger.batches.failed("orders")] == [key]
    sink.active = True
    fresh = gated(ledger_url, sink)
    begin(ledger, SECOND, run="another checkpoint")
    fresh(DF, 0)
    listed = invoke(ledger_url, "failures", width=220)
    assert listed.exit_code == 3
    assert key[:8] in listed.stdout
    assert "has another checkpoint; a backfill runs the batch (NotRunAgain)" in listed.stdout
    assert [batch.batch_key for batch in ledger.batches.failed("orders")] == [key]


class Ended(BaseException):
    """An exception that a library raises to end a program."""


ENDS = [SystemExit("the disk is gone"), KeyboardInterrupt(), Ended("the disk is gone")]


@pytest.mark.integration
@pytest.mark.parametrize(
    "policy", [*POLICIES, retry(3, "1 ms", then="isolate")], ids=lambda policy: policy.last
)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_what_is_no_exception_keeps_its_reason_and_ends_the_query(
    ledger: Ledger, ledger_url: str, policy: OnFailure, end: BaseException
) -> None:
    sink = Sink(raises={1: end})
    handler = gated(ledger_url, sink, policy)
    key = begin(ledger)
    with pytest.raises(HandlerExitError, match=type(end).__name__) as caught:
        handler(DF, 0)
    assert caught.value.__cause__ is end
    failed = stored(ledger, key)
    assert (failed.status, failed.owner, failed.outcome_unknown) == (Status.FAILED, None, True)
    assert failed.error is not None
    assert type(end).__name__ in failed.error.message
    assert str(end) in failed.error.message
    assert len(sink.batches) == 1
    assert invoke(ledger_url, "failures").exit_code == 3
    again = gated(ledger_url, sink, policy)
    begin(ledger)
    again(DF, 0)
    assert stored(ledger, key).status is Status.SUCCESS


def test_what_is_no_exception_in_a_part_leaves_nothing_in_progress(
    ledger: Ledger, ledger_url: str
) -> None:
    sink = Sink(raises={1: ValueError("no"), 3: SystemExit(1)})
    handler = gated(ledger_url, sink, POLICIES[2])
    begin(ledger)
    with pytest.raises(HandlerExitError):
        handler(DF, 0)
    assert {batch.status for batch in ledger.batches.newest()} == {Status.FAILED}


def test_what_is_no_exception_in_a_batch_without_ranges_reaches_spark_as_one(
    ledger: Ledger, ledger_url: str
) -> None:
    context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": "q"}.get)
    df = cast(DataFrame, SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context)))
    assert ledger.batches.newest() == ()
    with pytest.raises(HandlerExitError, match="SystemExit: 3"):
        gated(ledger_url, Sink(raises={1: SystemExit(3)}))(df, 0)


def test_in_a_backfill_beside_the_stream_it_fails_that_backfill_with_the_reason(
    ledger: Ledger, ledger_url: str
) -> None:
    key = begin(ledger)
    ledger.batches.fail(key, ValueError("it was down"))
    executor = gated(ledger_url, Sink(raises={1: SystemExit(3)}), POLICIES[2]).runner("beside")
    scheduler = BackfillScheduler(
        ledger,
        executor.run,
        READER,
        OwnerSettings("beside"),
        limits=executor.limits,
        budget=UnlimitedBudget(),
        clock=lambda: 0,
    )
    event = scheduler.run_batch(key)
    assert isinstance(event, Failed)
    assert "SystemExit: 3" in event.error.message
    assert stored(ledger, key).status is Status.FAILED


def one(_df: DataFrame) -> None: ...


def three(_df: DataFrame, _batch: Batch, _more: int) -> None: ...


def keywords(_df: DataFrame, *, batch: Batch) -> None: ...


def two(_df: DataFrame, _batch: Batch, _more: int = 0) -> None: ...


class Stage:
    """Handlers that are methods."""

    def two(self, _df: DataFrame, _batch: Batch) -> None: ...

    def one(self, _df: DataFrame) -> None: ...

    def __call__(self, _df: DataFrame, _batch: Batch) -> None: ...


def never(*_: object) -> NoReturn:
    raise AssertionError("it was called")


@pytest.mark.parametrize(
    "handler",
    [one, three, keywords, Stage().one, functools.partial(three, DF, cast(Batch, None)), "x"],
)
def test_a_handler_that_does_not_take_two_arguments_is_refused_at_once(
    ledger_url: str, handler: Any
) -> None:
    gate = Gate("orders", interval="1 second", ledger=ledger_url)
    with pytest.raises(OptionError, match=r"handler\(df, batch\)"):
        gate.write(cast(DataFrame, None), handler)


@pytest.mark.parametrize(
    "handler",
    [two, Stage().two, Stage(), functools.partial(three, _more=1), never, print, dict.update, max],
)
def test_whatever_takes_two_arguments_or_does_not_say_passes(handler: Handler) -> None:
    check_handler(handler)


async def awaited(_df: DataFrame, _batch: Batch, _more: int = 0) -> None: ...


def generated(_df: DataFrame, _batch: Batch) -> Iterator[None]:
    yield


async def generated_later(_df: DataFrame, _batch: Batch) -> AsyncIterator[None]:
    yield


class AsyncStage:
    """Handlers whose calls write nothing."""

    async def method(self, _df: DataFrame, _batch: Batch) -> None: ...

    async def __call__(self, _df: DataFrame, _batch: Batch) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        awaited,
        generated,
        generated_later,
        AsyncStage(),
        AsyncStage().method,
        functools.partial(awaited, _more=1),
        functools.partial(AsyncStage()),
    ],
)
def test_a_handler_whose_call_does_not_run_it_is_refused_at_once(
    ledger_url: str, handler: Any
) -> None:
    gate = Gate("orders", interval="1 second", ledger=ledger_url)
    with pytest.raises(OptionError, match=r"calling it does not run its code, .* write a plain"):
        gate.write(cast(DataFrame, None), handler)


class Awaitable:
    """Work that begins when it is awaited."""

    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.last)
@pytest.mark.parametrize(
    "unrun",
    [
        lambda: awaited(DF, cast(Batch, None)),
        lambda: generated(DF, cast(Batch, None)),
        lambda: generated_later(DF, cast(Batch, None)),
        Awaitable,
        Future,
    ],
)
def test_a_batch_fails_whose_handler_returns_work_that_nobody_waits_for(
    ledger: Ledger, ledger_url: str, policy: OnFailure, unrun: Callable[[], object]
) -> None:
    def handler(_df: DataFrame, _batch: Batch) -> Any:
        return unrun()

    context = RunContext(ledger=shared_ledger(ledger_url), handler=handler, policy=policy)
    gated_handler = GatedHandler("orders", context)
    key = begin(ledger)
    with pytest.raises(OptionError, match="the batch counts as not written; write a plain"):
        gated_handler(DF, 0)
    assert stored(ledger, key).status is Status.FAILED


def test_a_batch_with_another_number_writes_for_the_same_call_of_its_handler() -> None:
    run = create_autospec(HandlerTransaction, instance=True)
    batch = renumber(bind(Batch("key", 0, (), 1, "live", 1), run), 2)
    assert batch == Batch("key", 0, (), 1, "live", 2)
    batch.reject([], "no")
    run.reject.assert_called_once_with([], "no")


def test_a_batch_in_a_task_is_its_values_and_says_what_needs_the_driver(
    ledger: Ledger, ledger_url: str
) -> None:
    copies: list[Batch] = []
    frame = create_autospec(DataFrame, instance=True)

    def handler(_df: DataFrame, batch: Batch) -> None:
        pickled = cast(Any, cloudpickle).dumps(lambda: batch)
        copies.append(pickle.loads(pickled)())  # noqa: S301
        assert copies == [batch]

    gated_handler = GatedHandler(
        "orders", RunContext(ledger=shared_ledger(ledger_url), handler=handler, reader=READER)
    )
    begin(ledger)
    gated_handler(DF, 0)
    (copy,) = copies
    for call in (
        copy.transaction,
        lambda: copy.once(cast(Connection, None)),
        lambda: copy.append_iceberg(frame, cast(Any, None)),
        lambda: copy.kafka_headers("offset"),
        lambda: copy.reject([], "no"),
    ):
        with pytest.raises(OptionError, match=r"copy of batch \w+, .* call it in the handler"):
            call()


def test_a_handler_that_returns_a_dataframe_is_warned_that_nothing_writes_it() -> None:
    frame = create_autospec(DataFrame, instance=True)
    batch = Batch("key", 0, (), 1, "live", 1)
    with pytest.warns(UserWarning, match=r"has returned a DataFrame, .* write it in the handler"):
        call_handler(lambda df, _batch: df, frame, batch)
    call_handler(lambda _df, _batch: None, frame, batch)
