"""The exception at the root of what Spark raised, from texts as Spark 4.3 makes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ledger import ErrorReport
from headrace.ledger.root_cause import root_cause

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
def test_the_last_cause_is_told(
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
