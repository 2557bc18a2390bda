"""Health of a handler: whether it has ever worked, and whether its sink seems to be down.

A handler that has never worked stops its query. A misspelt name in a handler fails for every
record, and so looks like a sink that is down. A handler counts as wrong if it has processed nothing
since the start, and raises the same programming error for three batches, or for parts without a
common record. A handler that has worked before never counts as wrong, because a single record may
cause a `TypeError`.

A failure alone convicts no record: other records must have passed, in the stream or in a backfill.
`HandlerHealth` counts the runs of other records, called controls. A control is a batch or part that
must run anyway, under its own key, so it writes nothing twice.
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
"""Number of consecutive batches with the same programming error that prove the handler wrong."""

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
"""Names of exceptions of a programming error. Some of them may also be caused by a record."""


class HandlerHealth:
    """Health of one handler, shared by its callers in the stream and in a backfill. Thread-safe.

    ``clock`` returns a monotonic time (s).

    Attributes:
        passes: Number of successful runs with at least one record. A run is counted before the next
            one begins.
        failures: Number of failed runs.
        controls_passed, controls_failed: Numbers of passed and failed runs that a backfill may use
            as controls when it tests a record. Until the first run of a single record passes, only
            runs of a single record count; afterwards, all runs count.
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
        """Error of an isolation that stopped because the sink seems down, until a run passes."""
        return self._down

    def stopped_by(self, last: Exception | ErrorReport) -> NotProcessedError:
        """Record that an isolation stopped because nothing passed. Return an error with the reason.

        From now on, failed batches are not isolated until a run has passed.
        """
        why = ErrorReport.of(last) if isinstance(last, Exception) else last
        self._down = NotProcessedError(
            f"{why.line} (nothing passes: records that have nothing to do with each other fail one"
            " after the other, so the sink seems to be down, or the handler to be wrong)",
            (why.error_class, why.message),
        )
        return self._down

    def is_wrong(self, error: Exception, of_parts: Exception | ErrorReport | None) -> bool:
        """Return whether the handler itself is wrong, after a failed batch of the stream.

        A handler is wrong if it has processed nothing yet, and has raised the same programming
        error, such as an AttributeError, in three batches, or in parts without a common record.

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
        """Count a failed run. The caller must hold the handler's lock."""
        self.failures += 1
        self.controls_failed += is_single or self._takes_one

    def note(self, df: DataFrame, *, is_single: bool, is_dense: bool = False) -> None:
        """Count a successful run. The caller must hold the handler's lock.

        Args:
            df: The processed DataFrame.
            is_single: Whether the run has one offset.
            is_dense: Whether the log has a record at every offset, so that ``df`` cannot be empty.
        """
        self._down, self._last_s, self._has_worked = None, self._clock(), True
        if self._asking and (is_dense or _has_records(df)):
            self.passes += 1
            self._takes_one |= is_single
            self.controls_passed += self._takes_one

    def is_idle(self, for_s: float) -> bool:
        """Return whether no run has succeeded for ``for_s`` seconds, so that waiting is useless."""
        return self._clock() - self._last_s > for_s

    def __enter__(self) -> None:
        """Start counting passed runs. Each count may cost a small Spark job."""
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
