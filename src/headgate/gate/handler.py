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
            nothing new (a query may have other sources, and a first batch may begin at the end).
        attempt: 1 the first time, then counting; without ranges always 1.
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
        begun = shared_ledger(ledger_url).last_begun(gate)
        self._begins = begun[0] if begun is not None else 0

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run one batch.

        Raises:
            LedgerError: its outcome cannot be written down.
            Exception: whatever the handler raises.
        """
        ledger = shared_ledger(self._ledger_url)
        record = self._begun(ledger)
        if record is None:
            self._handler(df, Batch(self._key_of_nothing(df, batch_id), batch_id, (), 1, Kind.LIVE))
            return
        if record.status is not Status.IN_PROGRESS:
            return
        ledger.attach(record.schedule_id, batch_id)
        ranges = tuple(planned.offsets for planned in ledger.ranges(record.schedule_id))
        try:
            self._handler(
                df, Batch(record.schedule_id, batch_id, ranges, record.attempts, record.kind)
            )
        except Exception as error:
            ledger.fail(record.schedule_id, error)
            raise
        ledger.succeed(record.schedule_id)

    def _begun(self, ledger: Ledger) -> BatchRecord | None:
        """The row of the batch that Spark runs now; None where this gate has nothing in it.

        The planner begins the row just before, in the same trigger. What was begun earlier is a
        batch's before this one, or one that a query with another checkpoint has left.
        """
        begun = ledger.last_begun(self._gate)
        if begun is None or begun[0] == self._begins:
            return None
        self._begins, record = begun
        return record

    def _key_of_nothing(self, df: DataFrame, batch_id: int) -> str:
        """The key of a batch for which the ledger has no row: there are no ranges to make it of."""
        query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        return schedule_id(self._gate, f"{query} {batch_id}", ())
