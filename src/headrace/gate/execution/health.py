"""The health of a handler: whether it has ever worked, and whether its sink seems to be down.

A handler that has never worked stops its query. A misspelt name fails for any record, and looks
like a sink that is down. Two facts distinguish them: the same error of the program for parts
without a common record, or for three batches, and nothing processed since the start. A handler that
has worked before is never stopped this way, because a record may lead to a `TypeError`.

A failure alone convicts no record: others must have passed, live or in a backfill, which this class
counts. They pass under their own keys, as batches or parts that must run anyway, so a control
writes nothing twice.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame

from headrace.decoding import new_run, reported_to
from headrace.errors import NotProcessedError
from headrace.gate.ledger.error_report import ErrorReport

ALIKE: Final = 3
"""Consecutive batches with the same error of the program that prove the handler wrong."""

_PROGRAM: Final = frozenset(
    {
        "AnalysisException",
        "AttributeError",
        "ImportError",
        "IndentationError",
        "ModuleNotFoundError",
        "NameError",
        "ParseException",
        "PySparkAttributeError",
        "PySparkTypeError",
        "SyntaxError",
        "TypeError",
        "UnboundLocalError",
    }
)
"""Names of exceptions that a wrong program raises for any record; a record may cause some too."""


class HandlerHealth:
    """The health of one handler, shared by all callers, live and in a backfill.

    Any thread may use it.

    ``clock`` returns a monotonic time (s).

    Attributes:
        passes: Number of successful runs with at least one record. A run is counted before the next
            one begins.
        failures: Number of failed runs.
        controls_passed, controls_failed: Numbers of runs that may serve as controls while a
        backfill tests a record: runs of a single record, and all others after a single record has
        passed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.passes = 0
        self.failures = 0
        self.controls_passed = self.controls_failed = 0
        self._takes_one = False
        self._clock = clock
        self._last_s = clock()
        self._changing = threading.Lock()
        self._asking = 0
        self._down: NotProcessedError | None = None
        self._has_worked = False
        self._alike: list[str] = []

    @property
    def down(self) -> NotProcessedError | None:
        """The reason why the sink seems to be down, after an isolation stopped; else None."""
        return self._down

    def stopped_by(self, last: Exception | ErrorReport) -> NotProcessedError:
        """Record that an isolation stopped: failed batches are not isolated now.

        Return the error.
        """
        why = ErrorReport.of(last) if isinstance(last, Exception) else last
        self._down = NotProcessedError(
            f"{why.line} (nothing passes: records that have nothing to do with each other fail one"
            " after the other, so the sink seems to be down, or the handler to be wrong)",
            (why.error_class, why.message),
        )
        return self._down

    def is_wrong(self, error: Exception, of_parts: Exception | ErrorReport | None) -> bool:
        """Whether the handler itself is wrong, after a batch of the stream has failed.

        It is wrong if it has processed nothing yet, and fails with the same error of its program,
        such as an AttributeError, in several batches, or in parts without a common record.

        Args:
            error: The batch's failure.
            of_parts: The failure of parts without a common record; None if some have passed, or
                none was run.
        """
        why = ErrorReport.of(error)
        self._alike = [*(line for line in self._alike if line == why.line), why.line][-ALIKE:]
        if self._has_worked or why.error_class.rpartition(".")[2] not in _PROGRAM:
            return False
        same = of_parts is not None and ErrorReport.of(of_parts).line == why.line
        return len(self._alike) == ALIKE or same

    def note_failed(self, *, is_single: bool) -> None:
        """Record a failed run, of one offset or of more; within the handler's turn."""
        self.failures += 1
        self.controls_failed += is_single or self._takes_one

    def note(self, df: DataFrame, *, is_single: bool, is_dense: bool = False) -> None:
        """Record a successful run; within the handler's turn.

        Args:
            df: The processed DataFrame.
            is_single: Whether the run has one offset.
            is_dense: Whether each offset has a record, so that no search for a record is needed.
        """
        self._down, self._last_s, self._has_worked = None, self._clock(), True
        if self._asking and (is_dense or _has_records(df)):
            self.passes += 1
            self._takes_one |= is_single
            self.controls_passed += self._takes_one

    def is_idle(self, for_s: float) -> bool:
        """Whether no record was processed for a time (s), so that waiting is useless."""
        return self._clock() - self._last_s > for_s

    def __enter__(self) -> None:
        """Start counting passes; each count may cost a small job."""
        with self._changing:
            self._asking += 1

    def __exit__(self, *_raised: object) -> None:
        with self._changing:
            self._asking -= 1


def _has_records(df: DataFrame) -> bool:
    try:
        with reported_to(new_run()):  # values that do not fit were reported before
            return not df.isEmpty()
    except Exception:  # noqa: BLE001  (an unreadable DataFrame is not counted)
        return False
