"""Context shared by all runs of a handler by one owner: the handler, its ledger, how runs end."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Self

from pyspark.sql import DataFrame

from headrace.backfill import MAX_BACKFILLS
from headrace.core.timing import LEASE_MS, LeaseRenewal
from headrace.errors import HandlerExitError, SinkDownError
from headrace.execution.batch import Handler
from headrace.execution.batch_reader import BatchReader
from headrace.execution.handler_errors import ends_query
from headrace.execution.policy import STOP, OnFailure
from headrace.execution.rejections import RecordReader
from headrace.ledger import ErrorReport, Ledger
from headrace.ledger.error_report import query_stopped
from headrace.processes import new_owner

_LOG: Final = logging.getLogger("headrace.execution")


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
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.passes = 0
        self._clock = clock
        self._last_s = clock()
        self._changing = threading.Lock()
        self._asking = 0
        self._down: SinkDownError | None = None
        self._has_worked = False
        self._alike: list[str] = []

    @property
    def down(self) -> SinkDownError | None:
        """Why the sink seems to be down, since an isolation was stopped by it; None if not."""
        return self._down

    def stopped_by(self, last: Exception | ErrorReport) -> SinkDownError:
        """Note that an isolation was stopped: batches that fail are not isolated now."""
        why = ErrorReport.of(last) if isinstance(last, Exception) else last
        self._down = SinkDownError(
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

    def note(self, df: DataFrame, *, is_dense: bool = False) -> None:
        """A run has succeeded; within the handler's turn.

        Args:
            df: What it processed.
            is_dense: Whether there is a record at each of its offsets. Then it is not looked for
                one.
        """
        self._down, self._last_s, self._has_worked = None, self._clock(), True
        if self._asking and (is_dense or _has_records(df)):
            self.passes += 1

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
        return not df.isEmpty()
    except Exception:  # noqa: BLE001  (then nothing is known, and nothing is counted)
        return False


_LOOK_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Context of a gate's runs. A stream, its backfill and a command each have one.

    Attributes:
        ledger: The gate's.
        handler: The user's.
        policy: What follows an exception in it. Default: the query stops.
        reader: Reads a batch once more. None, the default, where the policy skips nothing.
        records: Reads what the handler rejects. Default: the reader.
        owner: Names this run of a program; no other one has the name. Default: a new name.
        lease_ms: How long a batch is this owner's without a renewal (ms). Default: 30 000.
        max_backfills: How many backfills of a batch fail before it is dead. Default: 100.
        turn: Entered while the handler runs, so that it is never called twice at a time; says
            whether it was free, None where nobody knows. Default: nobody else calls the handler.
        health: What is known of the handler; one for all who call it. Default: a new one.
        stopped: Whether the query is being stopped: what is raised then says nothing of a batch.
        sleep: Waits so many seconds.
    """

    ledger: Ledger
    handler: Handler
    policy: OnFailure = STOP
    reader: BatchReader | None = None
    records: RecordReader | None = None
    owner: str = field(default_factory=new_owner)
    lease_ms: int = LEASE_MS
    max_backfills: int = MAX_BACKFILLS
    turn: AbstractContextManager[bool | None] = field(default_factory=nullcontext)
    health: HandlerHealth = field(default_factory=HandlerHealth)
    stopped: Callable[[], bool] = lambda: False
    sleep: Callable[[float], None] = time.sleep

    @property
    def record_reader(self) -> RecordReader | None:
        """Reader of what the handler rejects."""
        return self.reader if self.records is None else self.records

    def is_ended_by(self, error: Exception) -> bool:
        """Whether the query ends with this, and what was raised says nothing of the records."""
        return self.stopped() or isinstance(error, HandlerExitError)

    def ends(self, error: Exception) -> bool:
        """Whether the query ends with this, for that reason or because it cannot go on."""
        return self.is_ended_by(error) or ends_query(error) is not None

    def end_report(self, error: Exception) -> ErrorReport | None:
        """Report of a batch whose query ends with this, whatever its records; None otherwise."""
        if self.stopped():
            return query_stopped(error)
        return ErrorReport.of(error) if isinstance(error, HandlerExitError) else None

    def wait(
        self, wait_s: float, until: Callable[[], bool] = lambda: False, look_s: float = _LOOK_S
    ) -> bool:
        """Wait until the time is over, the query is being stopped, or a condition holds.

        Args:
            wait_s: The longest wait (s).
            until: The condition, asked after each sleep.
            look_s: How long a sleep is (s). Default: 0.5.

        Returns:
            Whether the query is not being stopped.
        """
        while wait_s > 0 and not self.stopped():
            self.sleep(min(wait_s, look_s))
            wait_s -= look_s
            if until():
                break
        return not self.stopped()


OWNER_POLL_S: Final = 0.5
"""Interval at which another owner's lease is checked for its end (s)."""


class BatchLeases(LeaseRenewal):
    """Keeps batches for their owner, however long they take; within ``with``."""

    def __init__(self, ledger: Ledger, owner: str, lease_ms: int, *batches: str) -> None:
        self.owner: Final = owner

        def renew(batch_key: str) -> bool:
            return ledger.batches.renew(batch_key, owner, lease_ms)

        super().__init__("headrace-leases", renew, lease_ms, "batch {}", _LOG)
        self.keep(*batches)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop(wait=True)
