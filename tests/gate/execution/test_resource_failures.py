"""Which failures say that a batch took more memory than there is."""

import pytest
from pyspark.errors import PySparkException

from headrace.gate.execution.verdicts import took_too_much

LOST = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: "


@pytest.mark.parametrize(
    "text",
    [
        LOST + "Lost task 0.3 in stage 3.0 (TID 9) (10.0.0.7 executor 4): ExecutorLostFailure"
        " (executor 4 exited caused by one of the running tasks) Reason: worker lost",
        LOST + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        LOST + "java.lang.OutOfMemoryError: Java heap space",
        "Container from a bad node. Exit status: 137. Diagnostics: Container killed on request.",
        "The executor with id 2 exited with exit code 137(SIGKILL, possible container OOM).",
    ],
)
def test_a_lost_executor_or_worker_took_too_much(text: str) -> None:
    assert took_too_much(PySparkException(text))
    caused = ValueError("the batch cannot be kept")
    caused.__cause__ = PySparkException(text)
    assert took_too_much(caused)
    # A handler's own message may contain a record's text.
    assert not took_too_much(ValueError(text))


def test_python_s_own_lack_of_memory_is_one_and_another_failure_is_none() -> None:
    assert took_too_much(MemoryError())
    assert not took_too_much(PySparkException(LOST + "ValueError: order 1370, exit 13"))
