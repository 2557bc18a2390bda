import subprocess
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gate.ledger.samples import a_batch

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError
from headrace.gate.ledger.error_report import (
    MAX_MESSAGE_LENGTH,
    MAX_TRACE_LENGTH,
    ErrorReport,
    root_cause,
)
from headrace.gate.ledger.records import batch_key


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_an_exception_is_described_by_its_class_message_and_trace() -> None:
    report = ErrorReport.of(raised(DataLossError("offsets 3 to 5 are gone")))
    assert report.error_class == "headrace.errors.DataLossError"
    assert report.message == "offsets 3 to 5 are gone"
    assert report.trace.startswith("Traceback (most recent call last)")
    assert "in raised" in report.trace


def test_a_builtin_exception_is_named_as_a_user_writes_it() -> None:
    assert ErrorReport.of(KeyError("a")).error_class == "KeyError"


def test_the_trace_shows_the_cause() -> None:
    error = raised(ValueError("later"))
    error.__cause__ = raised(KeyError("sooner"))
    assert "KeyError: 'sooner'" in ErrorReport.of(error).trace


def test_a_transaction_that_was_open_too_long_in_a_task_is_named_as_that() -> None:
    text = (
        "Job aborted\nTraceback (most recent call last):\n  File x\n"
        "psycopg.errors.IdleInTransactionSessionTimeout: terminating connection"
    )
    kind = type("PythonException", (Exception,), {})
    kind.__module__ = "pyspark.errors.exceptions.captured"
    assert ErrorReport.of(kind(text)).message == (
        "The transaction was open too long; read and compute before it: terminating connection"
    )


def test_a_long_message_keeps_its_beginning_and_a_long_trace_its_end() -> None:
    report = ErrorReport.of(raised(ValueError("begin" + "x" * 50_000 + "end")))
    assert report.message.startswith("begin")
    assert len(report.message) == MAX_MESSAGE_LENGTH
    assert report.trace.endswith("end\n")
    assert len(report.trace) == MAX_TRACE_LENGTH


def test_an_exception_that_cannot_be_printed_is_described_all_the_same() -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    report = ErrorReport.of(UnprintableError())
    assert report.error_class.endswith("UnprintableError")
    assert "str() failed" in report.message


@given(st.text(st.characters(exclude_categories=[]), max_size=50))
def test_a_report_can_be_stored_whatever_is_in_it(text: str) -> None:
    report = ErrorReport(text, text, text)
    for part in (report.error_class, report.message, report.trace):
        assert "\x00" not in part
        part.encode("utf-8")


def test_a_batch_is_named_by_what_it_reads() -> None:
    ranges = [OffsetRange("a", 0, 0, 5), OffsetRange("b", 1, 7, 7)]
    batch = a_batch(*ranges, gate="g", checkpoint_id="r")
    assert batch.batch_key == batch_key("g", "r", ranges)
    assert batch.records == 5


offset_ranges = st.builds(
    lambda topic, partition, start, count: OffsetRange(topic, partition, start, start + count),
    st.text(max_size=5),
    st.integers(0, 3),
    st.integers(0, 2**62),
    st.integers(0, 3),
)


@given(st.lists(offset_ranges, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_the_ranges_makes_no_difference(
    ranges: list[OffsetRange], random: Random
) -> None:
    shuffled = list(ranges)
    random.shuffle(shuffled)
    assert batch_key("g", "r", shuffled) == batch_key("g", "r", ranges)


@given(st.lists(offset_ranges), st.lists(st.integers(0, 2**62)))
def test_empty_ranges_are_as_if_they_were_not_there(
    ranges: list[OffsetRange], positions: list[int]
) -> None:
    empty = [OffsetRange("t", 0, position, position) for position in positions]
    assert batch_key("g", "r", ranges + empty) == batch_key("g", "r", ranges)


@given(st.sets(offset_ranges), st.sets(offset_ranges))
def test_two_batches_have_one_id_only_if_they_read_the_same_offsets(
    some: set[OffsetRange], others: set[OffsetRange]
) -> None:
    same_offsets = {r for r in some if r.count} == {r for r in others if r.count}
    assert (batch_key("g", "r", some) == batch_key("g", "r", others)) == same_offsets


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_gates_and_runs_are_distinguished(one: tuple[str, str], other: tuple[str, str]) -> None:
    ranges = [OffsetRange("t", 0, 0, 1)]
    assert (batch_key(*one, ranges) == batch_key(*other, ranges)) == (one == other)


def test_a_topic_that_was_recreated_has_other_batches_of_the_same_offsets() -> None:
    ranges = [OffsetRange("orders", 0, 0, 9), OffsetRange("clicks", 0, 0, 9)]

    def with_ids(**topic_ids: str) -> str:
        return batch_key("g", "r", ranges, topic_ids)

    assert with_ids(orders="1") != with_ids(orders="2")
    assert len({with_ids(), with_ids(orders="1"), with_ids(clicks="1")}) == 3
    assert with_ids(orders="1", unread="3") == with_ids(orders="1")


@pytest.mark.integration
def test_the_id_is_the_same_in_every_process_and_version() -> None:
    # The beginning of the SHA-256 of ["orders","run",[["orders",0,10,20]]].
    known = "df10f41d56d43a69259e8831d5fe4b63"
    assert batch_key("orders", "run", [OffsetRange("orders", 0, 10, 20)]) == known
    code = (
        "from headrace.gate.ledger.records import batch_key;"
        "from headrace.core.ranges import OffsetRange;"
        "print(batch_key('orders', 'run', [OffsetRange('orders', 0, 10, 20)]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == known


PY4J = "py4j.protocol.Py4JJavaError"

WORKER = "pyspark.errors.exceptions.captured.PythonException"

PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 4327, in invoke_udf
    run_process()
  File "jobs.py", line 20, in price
    raise PriceError("price is -1\\nof order 7")
             ^^^^^^
shop.PriceError: price is -1
of order 7
"""

JAVA = """An error occurred while calling o392.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed
\tat org.apache.spark.A.b(A.scala:1)
\tSuppressed: java.io.IOException: closing, too
\t\tat java.x.Y.z(Y.java:2)
Caused by: org.apache.spark.SparkException: Task failed while writing rows to s3a://b:secret/
\t... 2 more
Caused by: java.io.IOException: No space left on device
on node 7
\tat java.x.Y.z(Y.java:2)
"""

BOTH = f"""An error occurred while calling o392.parquet.
: org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.A.b(A.scala:1)
Caused by: org.apache.spark.api.python.PythonException: {PYTHON.partition(":")[2].strip()}

\tat org.apache.spark.api.python.BasePythonRunner.x(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("error_class", "text", "expected"),
    [
        (WORKER, PYTHON, ("shop.PriceError", "price is -1\nof order 7")),
        (PY4J, JAVA, ("java.io.IOException", "No space left on device\non node 7")),
        (PY4J, BOTH, ("shop.PriceError", "price is -1\nof order 7")),
        (
            WORKER,
            f"{PYTHON}\n\nJVM stacktrace:\n{BOTH}",
            ("shop.PriceError", "price is -1\nof order 7"),
        ),
        (PY4J, "An error occurred while calling o1.x.\n: a.B\n\tat c", ("a.B", "")),
        (WORKER, "Traceback (most recent call last):\n  File x\nKeyError\n", ("KeyError", "")),
        (PY4J, "An error occurred while calling o1.x", None),
        ("ValueError", JAVA, None),
        ("shop.PriceError", PYTHON, None),
    ],
)
def test_the_last_cause_is_described(
    error_class: str, text: str, expected: tuple[str, str] | None
) -> None:
    assert root_cause(error_class, text) == expected


@given(st.sampled_from([PY4J, WORKER]), st.text())
def test_any_text_has_a_root_cause_or_none(error_class: str, text: str) -> None:
    found = root_cause(error_class, f"Traceback (most recent call last):\n{text}")
    assert found is None or found.error_class


def test_the_report_of_an_error_of_the_users_own_is_its_own() -> None:
    report = ErrorReport.of(ValueError(JAVA))
    assert (report.error_class, report.message) == ("ValueError", JAVA)
