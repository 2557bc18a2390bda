"""What all runs of a handler by one owner share: the handler, its ledger, and how they end."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from headrace.backfill import MAX_BACKFILLS
from headrace.core.lease import LEASE_MS
from headrace.errors import HandlerExitError
from headrace.execution.batch import Handler
from headrace.execution.batch_reader import BatchReader
from headrace.execution.handler_errors import ends_query
from headrace.execution.handler_health import HandlerHealth
from headrace.execution.policy import STOP, OnFailure
from headrace.execution.rejections import RecordReader
from headrace.ledger import ErrorReport, Ledger
from headrace.ledger.error_report import query_stopped
from headrace.processes import new_owner

_LOOK_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """How batches of a gate are run. A stream, its backfill and a command each have one.

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
