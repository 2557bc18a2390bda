"""The user's handler, wrapped: the ledger knows of each batch before it runs, and how it ended."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from headgate.control.ranges import OffsetRange
from headgate.gate.ledgers import shared_ledger
from headgate.ledger import BatchRecord, Kind, Ledger, Status, schedule_id


@dataclass(frozen=True, slots=True)
class Batch:
    """What a handler is told of the batch it is given.

    Attributes:
        key: the same for every run of the same ranges, another for every other batch; what an
            idempotent sink can write under.
        id: Spark's number of the batch in its query.
        ranges: the offsets in the batch, by topic and partition; empty where this gate's source had
            nothing new (a query may have other sources).
        attempt: 1 the first time, then counting.
        kind: ``live``, or ``backfill`` for a batch that had failed.
    """

    key: str
    id: int
    ranges: tuple[OffsetRange, ...]
    attempt: int
    kind: str


Handler = Callable[[DataFrame, Batch], None]


class GatedHandler:
    """What ``foreachBatch`` calls: settles the batch's row in the ledger around the user's handler.

    The row is ``in_progress`` when the handler starts and ``success`` or ``failed`` when it ends. A
    batch that Spark runs again although the ledger has it as ``success`` (the process died between
    the two) is not handed out a second time.
    """

    def __init__(self, gate: str, ledger_url: str, handler: Handler) -> None:
        self._gate = gate
        self._ledger_url = ledger_url
        self._handler = handler

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run one batch.

        Raises:
            LedgerError: its outcome cannot be written down.
            Exception: whatever the handler raises.
        """
        ledger = shared_ledger(self._ledger_url)
        record = ledger.last_batch(self._gate)
        if record is None or not _is_of(record, batch_id):
            key = schedule_id(self._gate, f"batch {batch_id}", ())
            self._handler(df, Batch(key, batch_id, (), 1, Kind.LIVE))
            return
        if record.status is Status.SUCCESS:
            return
        ledger.attach(record.schedule_id, batch_id)
        try:
            self._handler(df, self._batch(ledger, record, batch_id))
        except Exception as error:
            ledger.fail(record.schedule_id, error)
            raise
        ledger.succeed(record.schedule_id)

    @staticmethod
    def _batch(ledger: Ledger, record: BatchRecord, batch_id: int) -> Batch:
        ranges = tuple(planned.offsets for planned in ledger.ranges(record.schedule_id))
        return Batch(record.schedule_id, batch_id, ranges, record.attempts, record.kind)


def _is_of(record: BatchRecord, batch_id: int) -> bool:
    """Whether the gate's newest row is of the batch that Spark runs now.

    The planner writes the row just before, in the same trigger. If the newest row is an older
    batch's, this gate's source has nothing in this batch.
    """
    if record.status is Status.IN_PROGRESS:
        return True
    return record.status is Status.SUCCESS and record.query_batch_id == batch_id
