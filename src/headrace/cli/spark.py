"""A Spark session of a command's own, and its end by Ctrl-C."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from headrace.errors import SetupError
from headrace.execution import configure, register

_OF_CTRL_C: Final = (
    "KeyboardInterrupt while sending command",
    "Exception occurred while shutting down conn",
)
"""Py4J logs Ctrl-C, and that Java had it too, with stack traces before it passes it on."""

_CUT_OFF: Final = "There was an exception while executing the Python Proxy"
"""And so it does with what becomes of a batch that was cut off because it was asked for."""


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C, and SIGTERM, call ``stop``; Ctrl-C after that is a KeyboardInterrupt.

    In the main thread. Spark's own way with Ctrl-C, which cuts off what runs, is put aside.
    """
    asked = False

    def ask(number: int, _frame: object) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not asked:
            asked = True
            # In a thread, for this one may hold a lock that is needed.
            threading.Thread(target=stop, daemon=True).start()

    def is_told(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return not (message.startswith(_OF_CTRL_C) or (asked and message.startswith(_CUT_OFF)))

    loggers = [logging.getLogger(), logging.getLogger("py4j.clientserver")]
    for logger in loggers:
        logger.addFilter(is_told)
    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for logger in loggers:
            logger.removeFilter(is_told)


def start_spark(name: str) -> SparkSession:
    """The session of this application, set up as its environment says: ``spark-submit``, SPARK_*.

    Args:
        name: The application's.

    Raises:
        SetupError: Spark does not start.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        spark = configure(SparkSession.builder.appName(name)).getOrCreate()
    except PySparkRuntimeError as error:
        raise SetupError(
            f"Spark does not start ({error.getCondition()}); `headrace doctor` says what it needs."
        ) from error
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark
