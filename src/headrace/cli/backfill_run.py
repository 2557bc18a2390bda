"""Runs the batches that were chosen, one after the other, until they are done or somebody stops."""

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from headrace.backfill import (
    MAX_BACKFILLS,
    BackfillEvent,
    BackfillScheduler,
    Claimed,
    ExternalBudget,
    OwnerSettings,
    UnlimitedBudget,
)
from headrace.cli.backfill_tally import Tally
from headrace.cli.backfill_view import View
from headrace.cli.source_options import Reached
from headrace.cli.spark import start_spark, stopped_by_signals
from headrace.execution.batch import Batch, Handler
from headrace.execution.batch_reader import BatchReader
from headrace.execution.executor import BatchExecutor
from headrace.execution.handler_errors import exits_as_errors
from headrace.execution.policy import STOP, OnFailure
from headrace.ledger import BatchRecord, ErrorReport, Ledger
from headrace.ledger.base import wall_clock_ms
from headrace.ledger.patience import QUERY_PATIENCE_S, waiting_ends
from headrace.processes import new_owner

_NO_LIMIT: Final = 2**31 - 1
_CANCEL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """What is done with each batch.

    Attributes:
        handler: Called as ``handler(df, batch)``.
        ways: How what each batch reads is reached, by its key.
        policy: What follows an exception.
        unlimited: Whether all is run at once, or what the live stream leaves of its rate.
        max_backfills: How many backfills of a batch fail before it is dead.
    """

    handler: Handler
    ways: Mapping[str, Reached]
    policy: OnFailure = STOP
    unlimited: bool = False
    max_backfills: int = MAX_BACKFILLS


class ManualRun:
    """Runs batches of one gate by hand, each once.

    Args:
        ledger: Theirs.
        spark: Reads them.
        job: What is done with each.
        view: Is told what happens.
        batches: Which, in this order; one at least.

    Attributes:
        tally: What has become of them.
    """

    def __init__(
        self,
        ledger: Ledger,
        spark: SparkSession,
        job: Job,
        view: View,
        batches: Sequence[BatchRecord],
    ) -> None:
        self.tally = Tally(ledger, batches)
        self._ledger = ledger
        self._spark = spark
        self._job = job
        self._view = view
        self._owner = new_owner()
        gate = batches[0].gate
        self._budget = (
            UnlimitedBudget() if job.unlimited else ExternalBudget(ledger, gate, wall_clock_ms)
        )
        self._in_hand: BatchRecord | None = None
        keys = [batch.schedule_id for batch in batches]
        self._runs = [
            (self._scheduler_of(way), list(reached_so))
            for way, reached_so in groupby(keys, job.ways.__getitem__)
        ]

    def run(self) -> None:
        """Run them until they are done, or `stop` is called.

        Raises:
            LedgerError: The ledger cannot be read or written. A batch may be this process's, and
                can be taken anew when its lease has run out.
            BrokerError: The brokers cannot be reached.
            KeyboardInterrupt: Somebody wants the end at once; the batch in hand was given back.
        """
        try:
            for scheduler, keys in self._runs:
                scheduler.run_manually(keys)
        except (KeyboardInterrupt, SystemExit):
            self._give_back()
            raise

    def stop(self) -> None:
        """End as soon as the batch in hand is settled; from any thread."""
        for scheduler, _ in self._runs:
            scheduler.close()

    def _scheduler_of(self, way: Reached) -> BackfillScheduler:
        settings = OwnerSettings(self._owner, max_backfills=self._job.max_backfills)
        reader = BatchReader(self._spark, way.connector, way.options)
        executor = BatchExecutor(
            self._ledger,
            _without_exit(self._job.handler),
            settings,
            policy=self._job.policy,
            reader=reader,
            turn=nullcontext(),
        )
        return BackfillScheduler(
            self._ledger,
            executor.run,
            reader,
            settings,
            budget=self._budget,
            on_event=self._tell,
            clock=wall_clock_ms,
        )

    def _tell(self, event: BackfillEvent) -> None:
        self._in_hand = event.batch if isinstance(event, Claimed) else None
        self.tally.add(event)
        self._view.event(event, self.tally)

    def _give_back(self) -> None:
        """Make the batch in hand failed at once; that its run was ended makes nothing dead."""
        if self._in_hand is None:
            return
        # In a thread, for Java may be what hangs.
        cancel = threading.Thread(target=self._spark.sparkContext.cancelAllJobs, daemon=True)
        cancel.start()
        cancel.join(_CANCEL_S)
        report = ErrorReport("Interrupted", "The backfill was ended while it ran this batch.", "")
        with waiting_ends(lambda: True, "the backfill was ended"):
            self._ledger.give_back(
                self._in_hand.schedule_id,
                self._owner,
                report,
                max_backfills=_NO_LIMIT,
                cut_short=True,
            )


def _without_exit(handler: Handler) -> Handler:
    """A handler whose ``sys.exit()`` fails its batch, with the reason, and not ends the command."""

    def handle(df: DataFrame, batch: Batch) -> None:
        try:
            handler(df, batch)
        except SystemExit:
            with exits_as_errors(batch.key):
                raise

    return handle


def run_manually(url: str, job: Job, batches: Sequence[BatchRecord], view: View) -> bool:
    """Run batches in a Spark session of this application's own.

    Args:
        url: Their ledger's.
        job: What is done with each.
        batches: Which, of one gate, in this order; one at least.
        view: Is told what happens, and how it ended.

    Returns:
        Whether all is done.

    Raises:
        SetupError: Spark does not start.
        LedgerError: The ledger cannot be read or written.
        BrokerError: The brokers cannot be reached.
        KeyboardInterrupt: Somebody wants the end at once.
    """
    with Ledger.open(url, patience_s=QUERY_PATIENCE_S) as ledger:
        # What is in it is told by the view.
        logging.getLogger("headrace.backfill").addHandler(logging.NullHandler())
        spark = start_spark("headrace backfill")
        work = ManualRun(ledger, spark, job, view, batches)

        def stop() -> None:
            view.say("It stops after the batch in hand; Ctrl-C once more ends that at once, too.")
            work.stop()

        try:
            with view, stopped_by_signals(stop):
                work.run()
        finally:
            view.end(work.tally)
        spark.stop()
    return work.tally.is_good
