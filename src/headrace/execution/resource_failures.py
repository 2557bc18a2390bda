"""Failures of a batch that took more memory than a machine has: the same run would fail again."""

import re
from typing import Final

from pyspark.errors import PySparkException

from headrace.execution.handler_errors import with_causes
from headrace.execution.sink_outage import text_of
from headrace.spark_versions import Py4JError

_TOO_MUCH: Final = re.compile(
    r"ExecutorLostFailure"
    r"|Python worker exited unexpectedly"
    r"|java\.lang\.OutOfMemoryError"
    r"|[Cc]ontainer killed by YARN for exceeding"
    r"|\bOOMKilled\b"
    r"|[Ee]xit (?:code|status):? 137\b"
)
"""As Spark, YARN and Kubernetes say it; 137 is a process that was killed (128 + SIGKILL)."""


def took_too_much(error: BaseException) -> bool:
    """Whether an executor or a Python worker was lost, or has no memory left, while a batch ran.

    Only what Spark raises is searched, for what a handler says by itself may have a record's text
    in it; and Python's own ``MemoryError``.
    """
    for each in with_causes(error):
        if isinstance(each, MemoryError):
            return True
        if isinstance(each, Py4JError | PySparkException) and _TOO_MUCH.search(text_of(each)):
            return True
    return False
