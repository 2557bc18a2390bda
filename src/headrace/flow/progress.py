"""What the ledger knows of a stage's own batches: how fast it admits, and what it can take."""

from collections import deque
from typing import Final

from headrace.control.hop import ChunkRate, InputQueue, takes_per_s
from headrace.control.pressure import RateLimit
from headrace.ledger import BatchRecord, Kind, Ledger, Status

_LOOKED_BACK_ON: Final = 20
"""Batches that may begin between two looks, and be counted."""

_SIZES: Final = 240
"""Looks over which the size of a record is measured: a minute's."""


class StageProgress:
    """Follows a stage's batches in the ledger. For one thread.

    Args:
        ledger: The stage's.
        gate: Its gate there.
        interval_ms: How long its batches should take.
        began_ms: When this run of the stage began, by the clock that batches are planned by: a
            batch that it found at hand is run from its beginning.
    """

    def __init__(self, ledger: Ledger, gate: str, interval_ms: int, began_ms: int) -> None:
        self._ledger = ledger
        self._gate = gate
        self._interval_ms = interval_ms
        self._began_ms = began_ms
        self._emitted = ChunkRate(5 * interval_ms, 5 * interval_ms)
        self._admitted = 0
        self._newest: BatchRecord | None = None
        self._sizes: deque[tuple[int, int]] = deque(maxlen=_SIZES)
        self._record_size: float | None = None

    def look(self, time_ms: int) -> None:
        """Take note of the batches that have begun since the last look.

        Args:
            time_ms: Now, by the clock of `emits_per_s`.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        begun = self._ledger.last_begun(self._gate)
        if begun is None:
            return
        known, self._newest = self._newest, begun[1]
        if known is not None and known.schedule_id != self._newest.schedule_id:
            for batch in self._ledger.batches(
                self._gate, _LOOKED_BACK_ON, kind=Kind.LIVE, parts=False
            ):
                if batch.schedule_id == known.schedule_id:
                    break
                self._admitted += batch.planned_records
        self._emitted.look(time_ms, self._admitted)

    def emits_per_s(self, time_ms: int) -> float | None:
        """What it has really been admitting lately (records/s); None while that is not known."""
        return self._emitted.per_s(time_ms, 2 * self._interval_ms)

    def takes_bytes_per_s(
        self, queue: InputQueue, bound: RateLimit | None, wall_ms: int
    ) -> float | None:
        """What it would take if there were enough (bytes/s); None while that is not known.

        Args:
            queue: What waits for it.
            bound: Its bound under pressure.
            wall_ms: Now, by the clock that batches are planned by.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        rate_per_s, record_bytes = self._ledger.rate(self._gate), self._record_bytes(queue)
        if record_bytes is None:
            return None
        batch = self._newest
        records, running_ms = 0, 0
        if batch is not None and self.is_running:
            retried_ms = batch.start_time_ms if batch.attempts > 1 else None
            since_ms = max(batch.created_time_ms, self._began_ms, retried_ms or 0)
            records, running_ms = batch.planned_records, max(wall_ms - since_ms, 0)
        takes = takes_per_s(rate_per_s, bound, self._interval_ms, records, running_ms)
        return None if takes is None else takes * record_bytes

    @property
    def is_running(self) -> bool:
        """Whether its newest batch was at hand at the last look."""
        return self._newest is not None and self._newest.status is Status.IN_PROGRESS

    def _record_bytes(self, queue: InputQueue) -> float | None:
        """The mean size of the records that were admitted lately, from what the queue has given.

        Where none were for as long as is looked back, because one batch takes so long, it is what
        it was.
        """
        given_bytes = queue.arrived_bytes - queue.waiting_bytes
        if self._sizes and given_bytes < self._sizes[-1][0]:
            self._sizes.clear()
        self._sizes.append((given_bytes, self._admitted))
        first_bytes, first = self._sizes[0]
        if self._admitted > first and given_bytes > first_bytes:
            self._record_size = (given_bytes - first_bytes) / (self._admitted - first)
        return self._record_size
