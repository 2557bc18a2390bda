"""A batch that is cut off says so in words that Spark looks for, and in few of them."""

import re
import traceback

import pytest
from py4j.protocol import Py4JJavaError

from headrace.execution.handler_errors import shorten_interrupts


class Thrown:
    """What Java threw, as Py4J has it."""

    _target_id = "o1"

    def __init__(self, words: str) -> None:
        self.words = words

    def __str__(self) -> str:
        return self.words


def test_a_batch_that_is_cut_off_says_so_in_words_that_spark_looks_for() -> None:
    with pytest.raises(InterruptedError) as caught, shorten_interrupts():
        raise Py4JJavaError("", Thrown("java.lang.InterruptedException"))
    # Of Spark's StreamExecution.PROXY_ERROR, and without what was raised before.
    sought = "py4j.protocol.Py4JJavaError: An error occurred while calling.*InterruptedException"
    assert re.search(sought, str(caught.value))
    assert len("".join(traceback.format_exception(caught.value))) < 2000
    with pytest.raises(Py4JJavaError), shorten_interrupts():
        raise Py4JJavaError("", Thrown("java.lang.OutOfMemoryError"))
