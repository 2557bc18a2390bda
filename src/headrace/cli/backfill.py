"""``headrace backfill``: run failed batches again, by hand."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from headrace.backfill import MAX_BACKFILLS
from headrace.cli.backfill_choice import RUNNABLE, Choice, choose
from headrace.cli.backfill_view import plan_table, plan_values, view_of
from headrace.cli.backfill_work import work_of
from headrace.cli.choices import Since, Until
from headrace.cli.source_options import Option, OptionsFile, reached, source_options
from headrace.cli.status import DEFAULT_LEDGER, LedgerUrl
from headrace.cli.times import window_ms
from headrace.cli.words import plural
from headrace.control.ranges import OffsetRange
from headrace.ledger import BatchRecord, Ledger, Status
from headrace.ledger.base import wall_clock_ms


class OnFailureWord(StrEnum):
    """What follows an exception in the handler."""

    DEFER = "defer"
    ISOLATE = "isolate"


class Pace(StrEnum):
    """How much is run at once."""

    SPARE = "spare"
    UNLIMITED = "unlimited"


def backfill(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Keys of batches, or how they begin."),
    ] = None,
    *,
    handler: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Called as handler(df, batch) for each batch, as the stream's handler is.",
        ),
    ] = None,
    flow: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FLOW",
            help="In place of a handler: the flow whose stage the gate is. The batches are read, "
            "handled and written as that stage does it.",
        ),
    ] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    gate: Annotated[str | None, typer.Option(help="Those of this gate.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that failed; with --gate, all of that gate.")
    ] = False,
    status: Annotated[
        Status | None,
        typer.Option(
            metavar="STATUS",
            help=f"Those that stand so: {' or '.join(RUNNABLE)}, its process being gone.",
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Called as transform(df) before the handler, for a stream that was derived from "
            "what was read before it was written.",
        ),
    ] = None,
    on_failure: Annotated[
        OnFailureWord,
        typer.Option(
            help="What follows an exception: defer leaves the batch failed; isolate halves it "
            "until what cannot be processed stands alone, as dead letters.",
        ),
    ] = OnFailureWord.DEFER,
    option: Option = None,
    options_file: OptionsFile = None,
    max_backfills: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="A batch of which so many backfills have failed, those beside the stream too, is "
            "dead.",
        ),
    ] = MAX_BACKFILLS,
    pace: Annotated[
        Pace,
        typer.Option(
            help="spare: what the live stream leaves of its rate, larger batches in parts, and "
            "waiting while it leaves nothing; unlimited: each batch whole, and at once, for when "
            "the stream is stopped, or may wait.",
        ),
    ] = Pace.SPARE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be run; nothing is taken.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per event, and one at the end.")
    ] = False,
) -> None:
    """Run failed batches again, the earliest first, in an application of its own.

    Name them by KEY; by --gate, --status, --since and --until; or with --all, of one --gate or of
    the only gate of which batches have failed.
    What is read is reached where the stream reached it; Kafka's security settings are given with
    --option or --options-file.
    Spark is set up by its environment, as with spark-submit.
    Ctrl-C ends it after the batch in hand, and once more at once.
    Exit status 0: all is done, or there is nothing to do.
    Exit status 1: something failed again, is dead or was not run, or there was an error.
    """
    now_ms = wall_clock_ms()
    since_ms, until_ms = window_ms(since, until, now_ms)
    choice = Choice(
        keys=keys or (),
        everything=everything,
        gate=gate,
        status=status,
        since_ms=since_ms,
        until_ms=until_ms,
    )
    choice.check()
    given = source_options(option or (), options_file)
    work = work_of(handler, transform, flow, ledger)
    # What is to be run is there already: a ledger that is not is never made here.
    with Ledger.open(ledger, create=False) as reader:
        batches = choose(reader, ledger, choice)
        options = {**(work.options(batches[0].gate) if batches else {}), **given}
        ways = reached(reader, {batch.schedule_id: batch.gate for batch in batches}, options)
        if dry_run:
            gone_of = {
                key: way.connector.gone(way.options, reader.ranges(key))
                for key, way in ways.items()
            }
            _show_plan(batches, gone_of, as_json=as_json)
            return
    view = view_of(sum(batch.planned_records for batch in batches), as_json=as_json)
    if not batches:
        view.say("No batch that is meant has failed, so there is nothing to do.")
        return
    # A second of imports, which what is told above does without.
    from headrace.cli.backfill_run import Job, run_manually  # noqa: PLC0415
    from headrace.execution.policy import parse_on_failure  # noqa: PLC0415

    policy = parse_on_failure(on_failure.value)
    handle = work.handler(batches[0].gate)
    job = Job(handle, ways, policy, pace is Pace.UNLIMITED, max_backfills)
    if not run_manually(ledger, job, batches, view):
        raise typer.Exit(1)


def _show_plan(
    batches: Sequence[BatchRecord], gone_of: Mapping[str, Sequence[OffsetRange]], *, as_json: bool
) -> None:
    if as_json:
        for batch in batches:
            typer.echo(json.dumps(plan_values(batch, gone_of[batch.schedule_id])))
        return
    if batches:
        Console().print(plan_table(batches, gone_of))
        typer.echo()
    records = plural(sum(batch.planned_records for batch in batches), "record")
    typer.echo(f"{plural(len(batches), 'batch')} with {records} would be run; nothing was taken.")
