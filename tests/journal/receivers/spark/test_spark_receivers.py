"""Receivers in a real Spark of two cores, started, watched and stopped as a program does it."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession
from tests.journal.receivers.finite import Finite
from tests.journal.receivers.spark.driven import WAIT_S, is_free, post
from tests.journal.samples import values_of
from tests.services.waiting import wait_until

import headrace
from headrace.errors import LedgerError, OptionError, ReceiverError
from headrace.gate.ledger.ledger import Ledger
from headrace.journal import Journal
from headrace.journal.receivers import (
    Hosting,
    HttpReceiver,
    HttpSettings,
    Intake,
    IntakeSettings,
)
from headrace.journal.receivers.spark import HostedState, Receivers
from headrace.journal.receivers.spark.receiver_task import Assignment, TaskOutcome
from headrace.journal.receivers.spark.spark_receivers import (
    MAX_REASON_CHARS,
    SparkJobs,
    failure_reason,
)
from headrace.journal.records import Records

HTTP = HttpReceiver(HttpSettings(port=0))


class Stubborn:
    """A receiver that does not end."""

    async def receive(self, intake: Intake) -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue


class Silent:
    """A receiver to which nothing comes."""

    async def receive(self, intake: Intake) -> None:
        await asyncio.sleep(3600)


@pytest.fixture
def hosting(tmp_path: Path) -> Hosting:
    return Hosting(str(tmp_path / "events"), intake=IntakeSettings(block_interval_ms=5))


@pytest.fixture
def receivers(spark: SparkSession) -> Iterator[Receivers]:
    with Receivers(spark) as made:
        yield made


def values_in(hosting: Hosting) -> list[bytes]:
    return values_of(Journal.open(hosting.journal))


def worker(hosting: Hosting) -> int:
    """The process that has the lane's lock."""
    told = re.match(r"process (\d+) on ", Path(hosting.journal, "0", "lock").read_text())
    assert told
    return int(told[1])


def test_what_is_sent_to_it_is_read_by_spark_beside_it(
    spark: SparkSession, receivers: Receivers, hosting: Hosting
) -> None:
    headrace.register(spark)
    hosted = receivers.start(HTTP, 1, hosting)
    (status,) = hosted.wait_until_receiving(WAIT_S)
    assert (status.lane, status.state, status.restarts) == (0, HostedState.RECEIVING, 0)
    assert hosted.status() == (status,)
    for number in range(3):
        assert post(status.address, f"{number}") == 200
    rows = spark.read.format("headrace-journal").load(hosting.journal).collect()
    assert sorted(bytes(row.value) for row in rows) == [b"0", b"1", b"2"]
    hosted.stop()
    assert [each.state for each in hosted.status()] == [HostedState.STOPPED]
    assert is_free(hosting.journal)
    hosted.stop()


@pytest.mark.nightly
def test_a_worker_that_is_killed_is_replaced(receivers: Receivers, hosting: Hosting) -> None:
    hosted = receivers.start(HTTP, 1, hosting)
    (first,) = hosted.wait_until_receiving(WAIT_S)
    assert post(first.address, "before") == 200
    os.kill(worker(hosting), signal.SIGKILL)
    wait_until(lambda: hosted.status()[0].restarts)
    (second,) = hosted.wait_until_receiving(WAIT_S)
    assert second.last_error
    assert "The receiver's task has died: " in second.last_error
    assert "\n" not in second.last_error
    assert post(second.address, "after") == 200
    assert values_in(hosting) == [b"before", b"after"]


def test_the_end_of_the_with_block_stops_all(spark: SparkSession, hosting: Hosting) -> None:
    with Receivers(spark) as receivers:
        hosted = receivers.start(HTTP, 1, hosting)
        hosted.wait_until_receiving(WAIT_S)
    assert [each.state for each in hosted.status()] == [HostedState.STOPPED]
    assert is_free(hosting.journal)


def test_one_that_is_stopped_before_it_has_begun_holds_nothing(
    receivers: Receivers, hosting: Hosting
) -> None:
    hosted = receivers.start(HTTP, 1, hosting)
    hosted.stop()
    assert [each.state for each in hosted.status()] == [HostedState.STOPPED]
    wait_until(lambda: is_free(hosting.journal))
    receivers.start(HTTP, 1, hosting).wait_until_receiving(WAIT_S)


def test_one_that_does_not_end_is_killed_in_the_end(
    receivers: Receivers, hosting: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    hosted = receivers.start(Stubborn(), 1, hosting)
    hosted.wait_until_receiving(WAIT_S)
    hosted.stop(timeout_s=0.1)
    assert [each.state for each in hosted.status()] == [HostedState.STOPPED]
    assert "The receiver of lane 0 did not end in time, and was killed" in caplog.text
    wait_until(lambda: is_free(hosting.journal))


@pytest.mark.nightly
def test_one_that_cannot_succeed_is_named_to_whoever_waits(
    receivers: Receivers, hosting: Hosting
) -> None:
    def make(lane: int) -> HttpReceiver:
        return HttpReceiver(HttpSettings(port=70_000 + lane))

    hosted = receivers.start(make, 1, hosting)
    with pytest.raises(ReceiverError, match="its state is failed: port is 70000"):
        hosted.wait_until_receiving(WAIT_S)
    receivers.start(HTTP, 1, hosting).wait_until_receiving(WAIT_S)


def test_one_that_comes_to_an_end_gives_its_core_back(
    receivers: Receivers, hosting: Hosting
) -> None:
    hosted = receivers.start(Finite(), 1, hosting)
    wait_until(lambda: hosted.status()[0].state is HostedState.STOPPED)
    assert Journal.open(hosting.journal).bounds() == {0: (0, 2)}
    receivers.start(HTTP, 1, hosting).wait_until_receiving(WAIT_S)


def test_spark_would_have_no_core_left(receivers: Receivers, hosting: Hosting) -> None:
    too_many = r"2 receivers .* can run 2 tasks at the same time.*: start 1 at most, or give"
    with pytest.raises(OptionError, match=too_many):
        receivers.start(HTTP, 2, hosting)
    receivers.start(Silent(), 1, hosting)
    elsewhere = Hosting(hosting.journal, lane=1)
    with pytest.raises(
        OptionError, match=r"1 receivers .* beside the 1 that already run.*: give the"
    ):
        receivers.start(Silent(), 1, elsewhere)


def test_a_token_is_shown_nowhere(
    spark: SparkSession, receivers: Receivers, hosting: Hosting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="headrace")
    secret = HttpReceiver(HttpSettings(port=0, token="hunter2"))  # noqa: S106
    hosted = receivers.start(secret, 1, hosting)
    (status,) = hosted.wait_until_receiving(WAIT_S)
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    shown = [repr(each) for each in (status, hosted, secret, receivers, stages)]
    assert "hunter2" not in "".join(shown) + caplog.text


@pytest.mark.parametrize(
    ("receiver", "n", "changes", "why"),
    [
        (HTTP, 0, {}, "n is 0; it must be a whole number of 1 or more"),
        (HTTP, 1, {"lane": 100_000}, "lane 100000"),
        (HTTP, 2, {"lane": 99_999}, "lane 100000"),
        (HttpReceiver, 1, {}, "is the class HttpReceiver; pass an instance"),
        (HTTP, 1, {"journal": "ftp://somewhere/events"}, "ftp:// URLs are not supported"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    receivers: Receivers, tmp_path: Path, *, receiver: Any, n: int, changes: Any, why: str
) -> None:
    hosting = Hosting(**{"journal": str(tmp_path / "events"), **changes})
    with pytest.raises(OptionError, match=why):
        receivers.start(receiver, n, hosting)
    assert not (tmp_path / "events").exists()


def test_what_cannot_be_sent_is_refused_with_the_way_out(
    receivers: Receivers, hosting: Hosting
) -> None:
    silent = Silent()
    silent.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match=r"cannot be pickled .*lock.*start\(lambda lane"):
        receivers.start(silent, 1, hosting)


def test_a_lane_has_one_receiver_of_an_application(
    receivers: Receivers, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "defaultParallelism", 8)
    hosted = receivers.start(Silent(), 1, hosting)
    with pytest.raises(OptionError, match="Lane 0 of the journal events already has a receiver"):
        receivers.start(Silent(), 2, hosting)
    assert Journal.open(hosting.journal).lanes() in ([], [0])
    hosted.stop()
    receivers.start(Silent(), 1, hosting).wait_until_receiving(WAIT_S)


@pytest.fixture
def configure(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the application be configured in another way, as far as is asked."""

    def configure(**changed: str) -> None:
        conf = spark.sparkContext.getConf()
        for name, value in changed.items():
            conf.set(name.replace("_", "."), value)
        monkeypatch.setattr(SparkContext, "getConf", lambda _: conf)

    return configure


@pytest.mark.parametrize(
    ("changed", "slots"),
    [
        ({"spark_task_cpus": "2"}, "1"),
        (
            {
                "spark_dynamicAllocation_enabled": "true",
                "spark_dynamicAllocation_maxExecutors": "2",
                "spark_executor_cores": "3",
                "spark_task_cpus": "2",
            },
            "2",
        ),
    ],
)
def test_slots_are_counted_as_spark_is_set_up(
    receivers: Receivers,
    hosting: Hosting,
    configure: Callable[..., None],
    changed: dict[str, str],
    slots: str,
) -> None:
    configure(**changed)
    with pytest.raises(OptionError, match=f"can run {slots} tasks at the same time"):
        receivers.start(HTTP, int(slots), hosting)


def test_executors_without_number_are_enough(
    receivers: Receivers, hosting: Hosting, configure: Callable[..., None]
) -> None:
    configure(spark_dynamicAllocation_enabled="true")
    hosted = receivers.start(Silent(), 3, hosting)
    assert [each.lane for each in hosted.status()] == [0, 1, 2]


def test_executors_that_are_just_coming_are_waited_for(
    spark: SparkSession,
    receivers: Receivers,
    hosting: Hosting,
    configure: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure(spark_master="spark://master:7077")
    cores = iter([2, 2, 4])
    monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: next(cores)))
    receivers.start(Silent(), 2, hosting)
    assert list(cores) == []
    monkeypatch.setattr(SparkContext, "defaultParallelism", 4)
    with Receivers(spark, executor_timeout_s=0) as hasty:
        hasty.start(Silent(), 2, replace(hosting, lane=2))
        with pytest.raises(OptionError, match=r"beside the 2 that already run.*: start 1 at most"):
            hasty.start(Silent(), 2, replace(hosting, lane=4))


def test_a_ledger_that_executors_cannot_use_is_refused(
    receivers: Receivers, hosting: Hosting, configure: Callable[..., None], tmp_path: Path
) -> None:
    configure(spark_master="spark://master:7077")
    gated = replace(hosting, gate="orders", ledger=f"sqlite:///{tmp_path}/ledger.db")
    with pytest.raises(OptionError, match=r"master is spark://master:7077.*PostgreSQL"):
        receivers.start(HTTP, 1, gated)
    with pytest.raises(LedgerError, match="cannot be understood"):
        receivers.start(HTTP, 1, replace(gated, ledger="ledger"))


def test_a_gates_receiver_is_known_to_its_ledger(
    receivers: Receivers, hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Ledger.open("sqlite:///ledger.db") as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="journal", estimator="pid")
        gated = replace(hosting, gate="orders", ledger="sqlite:///ledger.db")
        hosted = receivers.start(HTTP, 1, gated)
        hosted.wait_until_receiving(WAIT_S)
        (known,) = ledger.moments.receivers(["orders"])
        assert (known.journal, known.lane) == ("events", 0)
        hosted.stop()
        assert ledger.moments.receivers(["orders"]) == ()


class Stopped:
    """An application that has been stopped."""

    _jsc = None

    def setJobGroup(self, _group: str, _description: str) -> None:
        raise AttributeError("'NoneType' object has no attribute 'setJobGroup'")


def test_in_an_application_that_was_stopped_it_is_not_started_again(hosting: Hosting) -> None:
    assignment = Assignment(("127.0.0.1", 1), "", hosting, "", b"")
    stopped = SparkJobs(cast("SparkContext", Stopped()), assignment, "")
    ended = stopped.run("token")
    assert ended.is_permanent
    assert ended.error
    assert "The Spark application was stopped" in ended.error
    stopped.cancel()
    assert stopped.run("token") == TaskOutcome()


def test_of_a_dead_task_the_line_that_says_why_is_told() -> None:
    job = "An error occurred while calling z.collectAndServe.\n: org.apache.spark.SparkException: "
    trace = (
        "Job aborted: PythonException: Traceback (most recent call last):\n"
        '  File "worker.py", line 1, in main\nMemoryError: too much\n\n'
    )
    java = "\n\tat org.apache.spark.Job.run(Job.scala:1)\nCaused by: something"
    lost = "Job aborted: ExecutorLostFailure (executor 0 exited: exit code 137)"
    assert failure_reason(job + trace + java) == "MemoryError: too much"
    assert failure_reason(job + lost + "\nDriver stacktrace:" + java).endswith(lost)
    assert failure_reason("Nothing") == "Nothing"
    assert failure_reason("") == "the reason is unknown"
    assert len(failure_reason("x" * 10_000)) == MAX_REASON_CHARS


class Pool:
    """A receiver that stores which scheduler pool it runs in."""

    async def receive(self, intake: Intake) -> None:
        context = TaskContext.get()
        assert context is not None
        pool = str(context.getLocalProperty("spark.scheduler.pool"))
        await intake.submit(Records.of([pool.encode()], timestamp_ms=1))


def test_it_runs_in_the_scheduler_pool_of_whoever_starts_it(
    spark: SparkSession, receivers: Receivers, hosting: Hosting
) -> None:
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", "gates")
    hosted = receivers.start(Pool(), 1, hosting)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", cast("str", None))
    wait_until(lambda: hosted.status()[0].state is HostedState.STOPPED)
    assert values_in(hosting) == [b"gates"]


class Query:
    """Sends something while it is waited for."""

    def __init__(self, printed: pytest.CaptureFixture[str]) -> None:
        self._printed = printed
        self.addresses: list[str] = []

    def awaitTermination(self) -> None:
        for line in self._printed.readouterr().out.splitlines():
            lane, address = line.split()
            assert lane == f"{len(self.addresses)}"
            self.addresses.append(address)
            assert post(address, lane, authorization="Bearer t0ken") == 200


@pytest.mark.nightly
def test_the_page_s_program_runs(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(SparkContext, "defaultParallelism", 4)
    page = Path(__file__).parents[4] / "docs" / "receivers.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if "headrace.Receivers" in block]
    code = code.replace("s3://bucket/orders", f"{tmp_path}/orders")
    code = code.replace("postgresql://db/ledger", f"sqlite:///{tmp_path}/ledger.db")
    Ledger.open(f"sqlite:///{tmp_path}/ledger.db").close()
    query = Query(capsys)
    names = {"headrace": headrace, "spark": spark, "query": query, "token": "t0ken"}
    exec(compile(code, page.name, "exec"), names)  # noqa: S102  (our own page)
    assert len(query.addresses) == 2
    assert Journal.open(f"{tmp_path}/orders").bounds() == {0: (0, 1), 1: (0, 1)}


def test_a_port_that_is_none_is_refused(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="port is 65536"):
        Receivers(spark, port=65_536)
