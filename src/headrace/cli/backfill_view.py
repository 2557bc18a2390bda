"""How a backfill is told while it goes on: a bar on a terminal, or lines, or JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol, Self

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from headrace.backfill.events import BackfillEvent, Claimed, Done, Skipped
from headrace.cli.backfill_tally import Outcome, Tally
from headrace.cli.batches_view import SHORT, key_text, new_table, short_error
from headrace.cli.lines import line, printable
from headrace.cli.times import short_time
from headrace.cli.words import count, plural
from headrace.control.ranges import OffsetRange
from headrace.ledger import BatchRecord

Gone = Mapping[str, Sequence[OffsetRange]]
"""What has left Kafka of each batch, by its key."""

_WORDS: Final = {
    Outcome.DONE: "done",
    Outcome.SKIPPED: "left to somebody else",
    Outcome.FAILED: "failed again",
    Outcome.DEAD: "dead",
    Outcome.LEFT: "not run",
}


class View(Protocol):
    """Is told what happens; within ``with``."""

    def event(self, event: BackfillEvent, tally: Tally) -> None:
        """Tell an event, which is in the tally already."""
        ...

    def say(self, words: str) -> None:
        """Tell something to whoever watches."""
        ...

    def end(self, tally: Tally) -> None:
        """Tell what became of all; after the ``with``."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_raised: object) -> None: ...


class Lines:
    """A line for each event, and a sentence at the end."""

    def event(self, event: BackfillEvent, tally: Tally) -> None:
        """Write it."""
        typer.echo(printable(str(event)))

    def say(self, words: str) -> None:
        """Write it beside the output."""
        typer.echo(words, err=True)

    def end(self, tally: Tally) -> None:
        """Write the sentence."""
        typer.echo(summary(tally))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None: ...


def _event_name(event: BackfillEvent) -> str:
    """``marked_dead`` for a ``MarkedDead``."""
    return re.sub(r"\B(?=[A-Z])", "_", type(event).__name__).lower()


class JsonLines(Lines):
    """A JSON object for each event, and one at the end."""

    def event(self, event: BackfillEvent, tally: Tally) -> None:
        """Write it; times are ms since the epoch."""
        typer.echo(json.dumps({"event": _event_name(event), **asdict(event)}))

    def end(self, tally: Tally) -> None:
        """Write how many batches and records came to each outcome."""
        batches, records = (
            {outcome.name.lower(): number for outcome, number in each.items()}
            for each in (tally.batches, tally.records)
        )
        typer.echo(json.dumps({"event": "summary", "batches": batches, "records": records}))


class Bar(Lines):
    """A bar over the records, above it a line for each event but what goes well."""

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

    def event(self, event: BackfillEvent, tally: Tally) -> None:
        """Move the bar."""
        doing = (
            f"batch {event.batch.schedule_id[:SHORT]}" if isinstance(event, Claimed) else "waiting"
        )
        self._progress.update(self._task, description=doing, completed=tally.settled_records)
        if not isinstance(event, Claimed | Done | Skipped):
            self.say(printable(str(event)))

    def say(self, words: str) -> None:
        """Write it above the bar."""
        self._progress.console.print(words, markup=False, highlight=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._progress.stop()


def view_of(records: int, *, as_json: bool) -> View:
    """What suits the output: a bar where it is a terminal, lines where it is piped."""
    if as_json:
        return JsonLines()
    console = Console()
    return Bar(records, console) if console.is_terminal else Lines()


def summary(tally: Tally) -> str:
    """What became of all, in one sentence."""
    batches, records = (
        ", ".join(
            f"{count(number)} {_WORDS[outcome]}" for outcome, number in each.items() if number
        )
        for each in (tally.batches, tally.records)
    )
    of_all = sum(tally.batches.values()), sum(tally.records.values())
    return f"{plural(of_all[0], 'batch')}: {batches}; {plural(of_all[1], 'record')}: {records}."


def plan_values(batch: BatchRecord, gone: Sequence[OffsetRange]) -> dict[str, Any]:
    """A batch that would be run, for JSON."""
    return {
        "schedule_id": batch.schedule_id,
        "created_time_ms": batch.created_time_ms,
        "gate": batch.gate,
        "records": batch.planned_records,
        "attempts": batch.attempts,
        "error": batch.error and asdict(batch.error),
        "gone": [asdict(each) for each in gone],
    }


def plan_table(batches: Sequence[BatchRecord], gone: Gone) -> Table:
    """The batches that would be run, in this order."""
    table = new_table()
    table.add_column("key", no_wrap=True)
    table.add_column("planned", no_wrap=True)
    table.add_column("gate", no_wrap=True, max_width=16)
    table.add_column("records", justify="right", no_wrap=True)
    table.add_column("in Kafka", no_wrap=True)
    table.add_column("error", no_wrap=True, ratio=1)
    for batch in batches:
        table.add_row(
            key_text(batch),
            short_time(batch.created_time_ms),
            line(batch.gate),
            count(batch.planned_records),
            _still_there(batch, gone[batch.schedule_id]),
            "" if batch.error is None else line(short_error(batch.error)),
        )
    return table


def _still_there(batch: BatchRecord, gone: Sequence[OffsetRange]) -> str:
    left = batch.planned_records - sum(each.count for each in gone)
    if left == batch.planned_records:
        return "all"
    return f"only {count(left)}" if left else "nothing"
