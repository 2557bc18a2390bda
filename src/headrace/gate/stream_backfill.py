"""Backfill beside a stream: in its own application, while its query runs."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.backfill import (
    BesideStream,
    Dispatch,
    DispatchCentre,
    Live,
    Monitor,
    Schedule,
)
from headrace.gate.runner import BatchRunner
from headrace.gate.stream_state import state_of
from headrace.ledger import Ledger
from headrace.ledger.base import wall_clock_ms
from headrace.ledger.patience import waiting_ends

_LOG: Final = logging.getLogger("headrace.gate")


@dataclass(frozen=True)
class StreamBackfill:
    """Works off what a stream defers, as its schedule says, out of the time the stream leaves.

    Attributes:
        gate: the gate's name.
        ledger: its ledger.
        runner: runs the batches, as ``owner``.
        owner: whose they are meanwhile.
        interval_ms: the gate's.
        schedule: when it runs.
    """

    gate: str
    ledger: Ledger
    runner: BatchRunner
    owner: str
    interval_ms: int
    schedule: Schedule

    def follow(self, query: StreamingQuery) -> None:
        """Run until the query ends; in threads of its own."""
        dispatch = Dispatch(
            self.ledger,
            self.runner,
            owner=self.owner,
            allowance=BesideStream(self._live, wall_clock_ms),
            on_event=lambda _event: None,  # The log tells them.
            clock=wall_clock_ms,
            stopped=lambda: not query.isActive,
        )
        centre = DispatchCentre(dispatch)
        for name, target in (
            ("headrace-backfill", lambda: self._work(centre, query)),
            ("headrace-backfill-end", lambda: _close_after(query, centre)),
        ):
            threading.Thread(target=target, name=f"{name}-{self.gate}", daemon=True).start()

    def _work(self, centre: DispatchCentre, query: StreamingQuery) -> None:
        state = state_of(self.ledger.url, self.gate)
        state.when_a_batch_ends(centre.wake)
        try:
            # The stream's own batch, which is not stopped before it ends, may wait for the handler.
            with (
                waiting_ends(lambda: not query.isActive, "the query was stopped"),
                Monitor(self.ledger, self.gate) as monitor,
            ):
                centre.run(monitor, self.schedule)
        except Exception:  # noqa: BLE001  (in a thread, where nobody else would hear of it)
            _LOG.exception("The backfill of gate %r has ended; the stream goes on.", self.gate)
        finally:
            state.when_a_batch_ends(None)

    def _live(self) -> Live:
        return state_of(self.ledger.url, self.gate).live(
            self.ledger.rate(self.gate), self.interval_ms
        )


def _close_after(query: StreamingQuery, centre: DispatchCentre) -> None:
    try:
        query.awaitTermination()
    except StreamingQueryException:
        pass  # The query's own business.
    finally:
        centre.close()


class GatedStreamWriter(DataStreamWriter):
    """Spark's writer, which asks before its query starts, and tells when it has.

    Args:
        df: what is written.
        before: called first; what it raises, `start` raises.
        started: called with the query, and where its checkpoint is if the writer was told.
    """

    def __init__(
        self,
        df: DataFrame,
        before: Callable[[], None],
        started: Callable[[StreamingQuery, str | None], None],
    ) -> None:
        super().__init__(df)
        self._before = before
        self._started = started
        self._checkpoint: str | None = None

    def option(self, key: str, value: Any) -> Self:
        """Set an option, as Spark does."""
        if key.lower() == "checkpointlocation":
            self._checkpoint = str(value)
        super().option(key, value)
        return self

    def options(self, **options: Any) -> Self:
        """Set options, as Spark does."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def start(self, *given: Any, **options: Any) -> StreamingQuery:
        """Start the query, and what goes beside it.

        Raises:
            GateInUseError: another query stands behind the gate.
        """
        self._before()
        checkpoint = options.get("checkpointLocation", self._checkpoint)
        query = super().start(*given, **options)
        self._started(query, checkpoint)
        return query
