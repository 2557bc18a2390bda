"""Real gated queries that end, or whose handler fails in Spark, on a real broker."""

import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import (
    DataFrame,
    SparkSession,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from pyspark.sql.streaming.query import StreamingQuery
from tests.gate.execution.queries import DEADLINE_S, Handled, everything_in, finish, read, write
from tests.operate.cli.outcomes import invoke
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until

import headrace
from headrace.gate.execution.batch import Batch, Handler
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord
from headrace.gate.ledger.transitions import Status


@dataclass
class Job:
    """A gated query of one topic, which has one record."""

    spark: SparkSession
    ledger: Ledger
    orders: Topic
    folder: Path

    @property
    def batch(self) -> BatchRecord:
        return self.ledger.batches.newest("orders", 1)[0]

    def start(self, handler: Handler, checkpoint: str = "checkpoint") -> StreamingQuery:
        gate = Gate("orders", interval="1 second", ledger=self.ledger.url)
        return write(gate, read(gate, self.spark, self.orders), handler, self.folder / checkpoint)

    def says(self, *arguments: str) -> str:
        return invoke(self.ledger.url, *arguments, width=200).stdout

    def is_good_when_started_again(self) -> bool:
        handled = Handled()
        finish(self.start(handled))
        done = (
            len(self.ledger.batches.newest("orders")) == 1 and self.batch.status is Status.SUCCESS
        )
        return done and handled.records == everything_in((self.orders, 1))


@pytest.fixture
def job(spark: SparkSession, topic: TopicFactory, ledger: Ledger, tmp_path: Path) -> Job:
    orders = topic()
    orders.produce(b"-1")
    return Job(spark, ledger, orders, tmp_path)


def test_how_a_query_ended_is_in_the_ledger_until_the_next_one_starts(job: Job) -> None:
    def ended() -> str | None:
        return job.ledger.gates.all()[0].ended

    finish(job.start(Handled()))
    wait_until(lambda: ended() == "finished", DEADLINE_S)
    assert "Finished" in job.says("status", "orders")
    gate = Gate("orders", interval="1 second", ledger=job.ledger.url)
    writer = gate.write(read(gate, job.spark, job.orders), Handled())
    query = writer.option("checkpointLocation", str(job.folder / "checkpoint")).start()
    wait_until(lambda: job.ledger.gates.query("orders"), DEADLINE_S)
    assert ended() is None
    query.stop()
    wait_until(lambda: ended() == "stopped", DEADLINE_S)
    assert "Stopped" in job.says("status", "orders")

    def fail(_df: DataFrame, _batch: Batch) -> None:
        raise ValueError("this cannot be kept")

    job.orders.produce(b"2")
    with pytest.raises(StreamingQueryException):
        finish(job.start(fail))
    wait_until(lambda: ended() == "failed", DEADLINE_S)
    assert "ValueError: this cannot be kept" in (job.ledger.gates.all()[0].ended_error or "")


def test_a_query_without_a_handler_of_a_gate_ends_with_a_word_too(job: Job) -> None:
    options = {
        "headrace.gate": "bare",
        "headrace.interval": "1 second",
        "headrace.ledger": job.ledger.url,
        "kafka.bootstrap.servers": job.orders.bootstrap_servers,
        "subscribe": job.orders.name,
        "startingOffsets": "earliest",
    }
    headrace.register(job.spark, ledger=job.ledger.url)

    def start(checkpoint: str) -> StreamingQuery:
        df = job.spark.readStream.format("headrace-kafka").options(**options).load()
        writer = df.writeStream.format("noop")
        return writer.option("checkpointLocation", str(job.folder / checkpoint)).start()

    def ended() -> str | None:
        return job.ledger.gates.all()[0].ended

    query = start("first")
    wait_until(lambda: job.ledger.batches.newest("bare"), DEADLINE_S)
    query.processAllAvailable()
    query.stop()
    wait_until(lambda: ended() == "stopped", DEADLINE_S)
    assert "Stopped" in job.says("status", "bare")
    query = start("first")
    wait_until(lambda: job.ledger.gates.query("bare"), DEADLINE_S)
    assert ended() is None
    query.stop()


def terminate_once_it_waits() -> None:
    """Send SIGTERM to this process when its main thread is in ``awaitTermination``."""
    main = threading.main_thread().ident or 0

    def waits() -> bool:
        stack = traceback.extract_stack(sys._current_frames()[main])
        return {"awaitTermination", "send_command"} <= {frame.name for frame in stack}

    wait_until(waits, DEADLINE_S)
    os.kill(os.getpid(), signal.SIGTERM)


def test_an_operator_or_sigterm_ends_a_query_once_its_batch_is_done(job: Job) -> None:
    handled, may_end, began = Handled(), threading.Event(), threading.Event()

    def handle(df: DataFrame, batch: Batch) -> None:
        began.set()
        assert may_end.wait(DEADLINE_S)
        handled(df, batch)

    def start() -> StreamingQuery:
        gate = Gate("orders", interval="1 second", ledger=job.ledger.url)
        writer = gate.write(read(gate, job.spark, job.orders), handle)
        return writer.option("checkpointLocation", str(job.folder / "checkpoint")).start()

    def says_stopped(by: str) -> bool:
        said = job.says("status", "orders")
        return "Stopped" in said and f"by {by};" in said

    query = start()
    wait_until(began.is_set, DEADLINE_S)
    asked = invoke(
        job.ledger.url, "stop", "orders", "--by", "ops", "--why", "a new one", "--timeout", "0s"
    )
    assert (asked.exit_code, asked.stdout) == (
        3,
        "orders: its query still runs, and ends when its batch is done.\n",
    )
    assert query.isActive, "its batch runs"
    may_end.set()
    wait_until(lambda: says_stopped("ops: a new one"), DEADLINE_S)
    assert (query.isActive, query.exception(), job.batch.status) == (False, None, Status.SUCCESS)
    none = invoke(job.ledger.url, "stop", "orders")
    assert "No query runs behind 'orders'" in str(none.exception)

    again = start()
    wait_until(lambda: job.ledger.gates.query("orders"), DEADLINE_S)
    job.orders.produce(b"2")
    wait_until(lambda: len(handled.records) == 2, DEADLINE_S)  # what was stopped is over
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    threading.Thread(target=terminate_once_it_waits).start()
    assert again.awaitTermination(DEADLINE_S)
    wait_until(lambda: says_stopped("SIGTERM"), DEADLINE_S)
    assert (again.isActive, again.exception()) == (False, None)


@pytest.mark.nightly
def test_lists_show_the_root_cause_of_what_spark_raised(job: Job) -> None:
    file = job.folder / "a file"
    file.write_text("in the way")
    # A worker has no tests to import: this is pickled with its query.
    price = F.udf(lambda value: int(f"price {value.decode()}"), "int")

    def write_parquet(df: DataFrame, _batch: Batch) -> None:
        df.write.mode("append").parquet(f"{file}/orders")

    def compute(df: DataFrame, _batch: Batch) -> None:
        df.select(price("value")).collect()

    def write_what_fails(df: DataFrame, _batch: Batch) -> None:
        df.select(price("value")).write.parquet(f"{job.folder}/orders")

    of_python = ("ValueError", "invalid literal for int() with base 10: 'price -1'")
    for handler, error_class, message in (
        (write_parquet, "ParentNotDirectoryException", "Parent path is not a directory"),
        (compute, *of_python),
        (write_what_fails, *of_python),
    ):
        with pytest.raises(StreamingQueryException):
            finish(job.start(handler, checkpoint=handler.__name__))
        error = job.batch.error
        assert error is not None
        assert error.error_class.rpartition(".")[2] == error_class
        assert error.message.startswith(message)
        assert error.trace.count("\n") > 10
        listed = job.says("failures")
        assert message in listed
        assert f"({error_class})" in listed
        assert "An error occurred while calling" not in listed
        assert "An exception was thrown from the Python worker" not in listed
