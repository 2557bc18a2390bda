"""What is known of a handler: whether it has ever worked, and whether its sink seems to be down."""

import threading
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame

from headrace.decoding import new_run, reported_to
from headrace.errors import NotProcessedError
from headrace.gate.ledger.error_report import ErrorReport

ALIKE: Final = 3
"""So many batches in a row fail with the same error of the program, and it is the handler's."""

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
"""Names of exceptions that a program raises whatever its records; a record may lead to some."""


class HandlerHealth:
    """Shared by all who call one handler, live and in a backfill. Any thread may use it.

    Args:
        clock: Answers seconds since some moment.

    Attributes:
        passes: How many runs have succeeded with at least one record. A run is counted before the
            next one begins.
        failures: How many runs have failed.
        controls_passed, controls_failed: Runs that may serve as controls while a backfill tests a
            record: those of a single record, and all others once one of a single record has passed.
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
        """Why the sink seems to be down, since an isolation was stopped by it; None if not."""
        return self._down

    def stopped_by(self, last: Exception | ErrorReport) -> NotProcessedError:
        """Note that an isolation was stopped: batches that fail are not isolated now."""
        why = ErrorReport.of(last) if isinstance(last, Exception) else last
        self._down = NotProcessedError(
            f"{why.line} (nothing passes: records that have nothing to do with each other fail one"
            " after the other, so the sink seems to be down, or the handler to be wrong)",
            (why.error_class, why.message),
        )
        return self._down

    def is_wrong(self, error: Exception, of_parts: Exception | ErrorReport | None) -> bool:
        """Whether the handler itself is wrong, now that a batch of the stream has failed.

        It is where it has processed nothing yet, and fails with one and the same error of its
        program, such as an AttributeError, in several batches, or in parts of one that have no
        record in common.

        Args:
            error: What the batch failed with.
            of_parts: What such parts of it failed with; None where some have passed, or none was
                run.
        """
        why = ErrorReport.of(error)
        self._alike = [*(each for each in self._alike if each == why.line), why.line][-ALIKE:]
        if self._has_worked or why.error_class.rpartition(".")[2] not in _PROGRAM:
            return False
        same = of_parts is not None and ErrorReport.of(of_parts).line == why.line
        return len(self._alike) == ALIKE or same

    def note_failed(self, *, is_single: bool) -> None:
        """Count a run that has failed, of one offset or of more; within the handler's turn."""
        self.failures += 1
        self.controls_failed += is_single or self._takes_one

    def note(self, df: DataFrame, *, is_single: bool, is_dense: bool = False) -> None:
        """A run has succeeded; within the handler's turn.

        Args:
            df: What it processed.
            is_single: Whether that is one offset.
            is_dense: Whether there is a record at each of its offsets. Then it is not looked for
                one.
        """
        self._down, self._last_s, self._has_worked = None, self._clock(), True
        if self._asking and (is_dense or _has_records(df)):
            self.passes += 1
            self._takes_one |= is_single
            self.controls_passed += self._takes_one

    def is_idle(self, for_s: float) -> bool:
        """Whether nothing was processed for so long (s): then nothing is worth waiting for."""
        return self._clock() - self._last_s > for_s

    def __enter__(self) -> None:
        """Have passes counted; it may cost a small job each."""
        with self._changing:
            self._asking += 1

    def __exit__(self, *_raised: object) -> None:
        with self._changing:
            self._asking -= 1


def _has_records(df: DataFrame) -> bool:
    try:
        with reported_to(new_run()):  # what does not fit is reported already
            return not df.isEmpty()
    except Exception:  # noqa: BLE001  (then nothing is known, and nothing is counted)
        return False
