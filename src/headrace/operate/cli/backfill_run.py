"""Runs the batches that ``headrace backfill`` selected, and prints progress and outcomes."""

import logging
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from itertools import groupby
from typing import Final, Self

import typer
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from headrace.core.system import new_owner
from headrace.core.timing import cancel_when, wall_clock_ms
from headrace.gate import (
    MAX_BACKFILLS,
    OF_A_QUERY,
    STOP,
    BackfillEvent,
    BackfillLimits,
    BackfillScheduler,
    Batch,
    BatchRecord,
    BatchRunner,
    Claimed,
    Done,
    ErrorReport,
    ExternalBudget,
    Failed,
    Handler,
    LeaseLost,
    Ledger,
    Lost,
    MarkedDead,
    OnFailure,
    OwnerSettings,
    PartlyDone,
    RunContext,
    Skipped,
    SparkBatchReader,
    Status,
    UnlimitedBudget,
    call_handler,
    exits_as_errors,
    parse_on_failure,
)
from headrace.operate.cli.exits import stopped_by_signals
from headrace.operate.cli.printing import print_json
from headrace.operate.cli.shared_options import start_spark
from headrace.operate.status.sources import SourceAccess
from headrace.operate.status.words import SHORT, count, plural, printable

_CANCEL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """Handler, sources by batch key, and limits of a manual backfill."""

    handler: Handler
    sources: Mapping[str, SourceAccess]
    policy: str | OnFailure = STOP
    unlimited: bool = False
    max_backfills: int = MAX_BACKFILLS


class ManualBackfill:
    """Runs batches of one gate in Spark, each batch once, in the given order."""

    def __init__(
        self,
        ledger: Ledger,
        spark: SparkSession,
        job: Job,
        view: "ProgressLines",
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
        self._current: BatchRecord | None = None
        keys = [batch.batch_key for batch in batches]
        self._schedulers = [
            (self._scheduler_of(source), list(same_source))
            for source, same_source in groupby(keys, job.sources.__getitem__)
        ]

    def run(self) -> None:
        """Run the batches, each once, until the last batch has ended or `stop` is called.

        A second Ctrl-C releases the current batch and raises KeyboardInterrupt. After a
        LedgerError the current batch may stay claimed until its lease expires.
        """
        try:
            for scheduler, keys in self._schedulers:
                scheduler.run_manually(keys)
        except (KeyboardInterrupt, SystemExit):
            self._release()
            raise

    def stop(self) -> None:
        """End the backfill after the current batch. May be called from any thread."""
        for scheduler, _ in self._schedulers:
            scheduler.close()

    def _scheduler_of(self, source: SourceAccess) -> BackfillScheduler:
        reader = SparkBatchReader(self._spark, source.connector, source.options)
        context = RunContext(
            ledger=self._ledger,
            handler=_without_exit(self._job.handler),
            policy=replace(
                parse_on_failure(self._job.policy),
                backfills=BackfillLimits(self._job.max_backfills),
            ),
            reader=reader,
            owner=self._owner,
        )
        runner = BatchRunner(context)
        return BackfillScheduler(
            self._ledger,
            runner.run,
            reader,
            OwnerSettings(self._owner),
            limits=runner.limits,
            budget=self._budget,
            on_event=self._report,
            clock=wall_clock_ms,
        )

    def _report(self, event: BackfillEvent) -> None:
        self._current = event.batch if isinstance(event, Claimed) else None
        self.tally.add(event)
        self._view.event(event, self.tally)

    def _release(self) -> None:
        """Cancel the Spark jobs, and mark the current batch as failed at once.

        The batch does not become dead, however many backfills of it have failed.
        """
        if self._current is None:
            return
        # Cancel in a thread, because Java itself may hang.
        cancel = threading.Thread(target=self._spark.sparkContext.cancelAllJobs, daemon=True)
        cancel.start()
        cancel.join(_CANCEL_S)
        report = ErrorReport("Interrupted", "The backfill was ended while it ran this batch.", "")
        with cancel_when(lambda: True, "the backfill was ended"):
            self._ledger.batches.release(
                self._current.batch_key,
                self._owner,
                report,
                is_dead=False,
                outcome_unknown=True,
            )


def _without_exit(handler: Handler) -> Handler:
    """Wrap a handler so that its ``sys.exit()`` fails the batch instead of ending the command."""

    def handle(df: DataFrame, batch: Batch) -> None:
        try:
            call_handler(handler, df, batch)
        except SystemExit:
            with exits_as_errors(batch.key):
                raise

    return handle


def run_manually(url: str, job: Job, batches: Sequence[BatchRecord], *, as_json: bool) -> bool:
    """Run batches of one gate in a new Spark session, and print progress and outcomes.

    Return False if a batch or record failed again, is dead, or was not run.
    """
    view = progress_view(sum(batch.records_left for batch in batches), as_json=as_json)
    with Ledger.open(url, timeouts=OF_A_QUERY) as ledger:
        # The view prints the events of this logger.
        logging.getLogger("headrace.backfill").addHandler(logging.NullHandler())
        spark = start_spark("headrace backfill")
        work = ManualBackfill(ledger, spark, job, view, batches)

        def stop() -> None:
            view.say("The backfill stops after the current batch; a second Ctrl-C ends it at once.")
            work.stop()

        try:
            with view, stopped_by_signals(stop):
                work.run()
        finally:
            view.end(work.tally)
        spark.stop()
    return work.tally.is_good


class Outcome(IntEnum):
    """Outcome of a batch, or of a record, in a backfill."""

    DONE = 0
    SKIPPED = 1
    """The batch was not run, because another process runs it."""
    FAILED = 2
    DEAD = 3
    """The batch or record is dead. A record that is no longer in the source counts as dead too."""
    NOT_RUN = 4
    """The backfill ended before the batch began."""


_OUTCOMES: Final = {
    Status.SUCCESS: Outcome.DONE,
    Status.FAILED: Outcome.FAILED,
    Status.DEAD: Outcome.DEAD,
}
_WORDS: Final = {
    Outcome.DONE: "done",
    Outcome.SKIPPED: "skipped",
    Outcome.FAILED: "failed again",
    Outcome.DEAD: "dead",
    Outcome.NOT_RUN: "not run",
}


class Tally:
    """Counts the outcomes of the selected batches from the events of the backfill.

    If a batch is run in parts, the outcome of a part counts for the records of this part only.
    """

    def __init__(self, ledger: Ledger, chosen: Sequence[BatchRecord]) -> None:
        self._ledger = ledger
        self._left = {batch.batch_key: batch.records_left for batch in chosen}
        self._outcomes: dict[str, Outcome] = {}
        self._records: Counter[Outcome] = Counter()

    def add(self, event: BackfillEvent) -> None:
        """Count the outcomes that an event reports."""
        match event:
            case PartlyDone(batch, left):
                self._count(batch.batch_key, Outcome.DONE, self._left[batch.batch_key] - left)
            case Lost(batch, ranges):
                lost = sum(offsets.count for offsets in ranges)
                self._count(batch.batch_key, Outcome.DEAD, lost)
            case Skipped(batch_key):
                self._end(batch_key)
            case Done() | Failed() | MarkedDead() | LeaseLost():
                self._end(event.batch.batch_key)

    @property
    def known_records(self) -> int:
        """Number of records whose outcome is known."""
        return self._records.total()

    @property
    def records(self) -> dict[Outcome, int]:
        """Numbers of records of the selected batches, by outcome."""
        counts = self._records + Counter({Outcome.NOT_RUN: sum(self._left.values())})
        return {outcome: counts[outcome] for outcome in Outcome}

    @property
    def batches(self) -> dict[Outcome, int]:
        """Numbers of selected batches, by outcome."""
        counts = Counter(self._outcomes.get(key, Outcome.NOT_RUN) for key in self._left)
        return {outcome: counts[outcome] for outcome in Outcome}

    @property
    def is_good(self) -> bool:
        """Whether every batch and record is done, or run by another process."""
        bad = (Outcome.FAILED, Outcome.DEAD, Outcome.NOT_RUN)
        return not any(self.batches[outcome] or self.records[outcome] for outcome in bad)

    def _end(self, key: str) -> None:
        batch = self._ledger.batches.get(key)
        outcome = Outcome.SKIPPED if batch is None else _OUTCOMES.get(batch.status, Outcome.SKIPPED)
        letters = self._ledger.dead_letters.count_rejected([key]).get(key, 0)
        self._outcomes[key] = Outcome.DEAD if letters and outcome is Outcome.DONE else outcome
        if batch is not None and outcome is Outcome.FAILED:
            self._count(key, Outcome.DONE, self._left[key] - batch.records_left)
        self._count(key, outcome, self._left[key])
        if letters:
            self._records += Counter({Outcome.DONE: -letters, Outcome.DEAD: letters})

    def _count(self, key: str, outcome: Outcome, records: int) -> None:
        self._records[outcome] += records
        self._left[key] -= records


def progress_view(records: int, *, as_json: bool) -> "ProgressLines":
    """Return a view that prints a backfill's progress.

    With ``as_json``, the view prints JSON objects. Otherwise it draws a bar on a terminal, or
    prints lines if there is no terminal. The bar is full at ``records`` processed records.
    """
    if as_json:
        return ProgressJson()
    console = Console()
    return ProgressBar(records, console) if console.is_terminal else ProgressLines()


class ProgressLines:
    """View that prints each event of a backfill as a line, and a summary at the end."""

    def event(self, event: BackfillEvent, tally: "Tally") -> None:
        """Print an event that ``tally`` has already counted."""
        typer.echo(printable(str(event)))

    def say(self, words: str) -> None:
        """Print a message on standard error."""
        typer.echo(words, err=True)

    def end(self, tally: "Tally") -> None:
        """Print the numbers of batches and records by outcome. Leave the view's context first."""
        typer.echo(summary(tally))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None: ...


def _event_name(event: BackfillEvent) -> str:
    return re.sub(r"\B(?=[A-Z])", "_", type(event).__name__).lower()


class ProgressJson(ProgressLines):
    """View that prints each event as a JSON object, and a summary object at the end.

    Times are in milliseconds since the epoch.
    """

    def event(self, event: BackfillEvent, tally: "Tally") -> None:
        """Print an event as JSON."""
        print_json({"event": _event_name(event), **asdict(event)})

    def end(self, tally: "Tally") -> None:
        """Print the numbers of batches and records by outcome, as JSON."""
        batches, records = (
            {outcome.name.lower(): number for outcome, number in counts.items()}
            for counts in (tally.batches, tally.records)
        )
        print_json({"event": "summary", "batches": batches, "records": records})


class ProgressBar(ProgressLines):
    """View that draws a bar of processed records, and prints problems as lines above the bar."""

    def __init__(self, records: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(None),
            MofNCompleteColumn(),
            TextColumn("records"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._task = self._progress.add_task("waiting", total=records)

    def event(self, event: BackfillEvent, tally: "Tally") -> None:
        """Move the bar. Print the event above the bar unless it is Claimed, Done or Skipped."""
        doing = "waiting"
        if isinstance(event, Claimed):
            doing = f"batch {event.batch.batch_key[:SHORT]}"
        self._progress.update(self._task, description=doing, completed=tally.known_records)
        if not isinstance(event, Claimed | Done | Skipped):
            self.say(printable(str(event)))

    def say(self, words: str) -> None:
        """Print a message above the bar."""
        self._progress.console.print(words, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._progress.stop()


def summary(tally: Tally) -> str:
    """Return a sentence with the numbers of batches and records by outcome."""
    batches, records = (
        ", ".join(
            f"{count(number)} {_WORDS[outcome]}" for outcome, number in counts.items() if number
        )
        for counts in (tally.batches, tally.records)
    )
    of_all = sum(tally.batches.values()), sum(tally.records.values())
    return f"{plural(of_all[0], 'batch')}: {batches}; {plural(of_all[1], 'record')}: {records}."
