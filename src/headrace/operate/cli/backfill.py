"""``headrace backfill``: selects failed batches and the handler that runs them again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer
from rich.table import Table

from headrace.core.ranges import OffsetRange
from headrace.core.timing import wall_clock_ms
from headrace.errors import OptionError
from headrace.gate import MAX_BACKFILLS, BatchRecord, Ledger, Status
from headrace.operate.cli import printing as out, shared_options as opt
from headrace.operate.cli.batches_command import gate_or_batch, key_text, owner_word
from headrace.operate.cli.exits import ExitStatus
from headrace.operate.cli.shared_options import load_flow, load_handler
from headrace.operate.status import words
from headrace.operate.status.sources import SourceAccess, source_access

if TYPE_CHECKING:
    from headrace.flow import Stage
    from headrace.gate import Handler

RUNNABLE: Final = (Status.FAILED, Status.BACKFILLING)
"""Statuses of batches that a backfill can run. A ``backfilling`` batch can be run only after its
lease has expired."""

_NO_LIMIT: Final = 2**31 - 1
_IN_ONE_WAY: Final = (
    "Select the batches to run in one way: by their KEYS; by one GATE, with --status, --since"
    " and --until as filters; or with --all."
)


class FailurePolicy(StrEnum):
    """Reaction to the handler's exception: leave the batch failed, or isolate bad records."""

    DEFER = "defer"
    ISOLATE = "isolate"


class Pace(StrEnum):
    """Speed of a backfill: the rate that the live stream leaves unused, or no limit."""

    SPARE = "spare"
    UNLIMITED = "unlimited"


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GATE|KEY",
        help="A gate, to select all of its failed batches; or keys of batches, or the first"
        " digits of keys.",
        autocompletion=opt.complete_gates,
    ),
]
HandlerName = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Function that is called as handler(df, batch) for each batch, like the stream's"
        " handler.",
    ),
]
FlowName = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FLOW",
        help="Flow that has the gate as a stage, in place of --handler. The stage reads, handles"
        " and writes the batches.",
    ),
]
Everything = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Run all failed batches of the named gate, or of the only gate with failed batches.",
    ),
]
OfStatus = Annotated[
    Status | None,
    typer.Option(
        metavar="STATUS",
        help=f"Run only batches with this status: {' or '.join(RUNNABLE)}. The process that ran a"
        " backfilling batch must have ended.",
    ),
]
TransformName = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="Function that is called as transform(df) before the handler. Needed if the stream"
        " derives its records between reading and writing.",
    ),
]
OnFailureOption = Annotated[
    FailurePolicy,
    typer.Option(
        help="Reaction to an exception: defer leaves the batch failed; isolate halves the batch"
        " until each bad record is alone, and stores the bad records as dead letters.",
    ),
]
MaxBackfills = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Number of failed backfills after which a batch is dead; backfills in the stream's"
        " process count too.",
    ),
]
PaceOption = Annotated[
    Pace,
    typer.Option(
        help="spare: use the rate that the live stream leaves unused, run larger batches in"
        " parts, and wait while no rate is left. unlimited: run each batch whole, without"
        " waiting, for a stream that is stopped or may wait.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show the batches that would be run; claim none.")
]


def backfill(
    *,
    words: Words = None,
    handler: HandlerName = None,
    flow: FlowName = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    everything: Everything = False,
    status: OfStatus = None,
    since: opt.Since = None,
    until: opt.Until = None,
    transform: TransformName = None,
    on_failure: OnFailureOption = FailurePolicy.DEFER,
    option: opt.SourceOption = None,
    options_file: opt.OptionsFile = None,
    max_backfills: MaxBackfills = MAX_BACKFILLS,
    pace: PaceOption = Pace.SPARE,
    dry_run: DryRun = False,
    as_json: opt.AsJson = False,
) -> None:
    """Run failed batches again, the oldest first, in a Spark application of its own.

    Select batches by KEY; by GATE, with --status, --since and --until as filters; or with --all, if
    only one gate has failed batches.
    The ledger has the source's address. Give Kafka's security settings with --option or
    --options-file.
    Spark takes its settings from the environment, as with spark-submit.
    The first Ctrl-C ends the backfill after the current batch, and the second ends it at once.
    With --json, each event is a JSON object, and the last object is a summary.
    Exit status 0: each selected batch is done or run by another process, or no batch is selected.
    Exit status 1: a batch failed again, is dead or was not run, or there was an error.
    """
    window = opt.window_ms(since, until, wall_clock_ms())
    choice = Choice(words or (), everything, status, *window)
    options = opt.source_options(option or (), options_file)
    work = work_of(handler, transform, flow, ledger)
    ledger = work.ledger
    with Ledger.open(ledger, create=False) as reader:
        batches, sources = _found(reader, ledger, choice, work, options)
        if dry_run:
            _print_plan(reader, batches, sources, as_json=as_json)
            return
    if not batches:
        typer.echo("None of the selected batches has failed, so there is nothing to do.", err=True)
        return
    from headrace.operate.cli.backfill_run import Job, run_manually  # noqa: PLC0415  (it takes a second)

    handle, unlimited = work.handler(batches[0].gate), pace is Pace.UNLIMITED
    job = Job(handle, sources, on_failure.value, unlimited, max_backfills)
    if not run_manually(ledger, job, batches, as_json=as_json):
        raise typer.Exit(ExitStatus.ERROR)


@dataclass(frozen=True, slots=True)
class Choice:
    """Selection of batches on the command line: by keys, by gate and filters, or all.

    ``words`` are keys of batches, or the name of one gate.
    """

    words: Sequence[str]
    everything: bool
    status: Status | None
    since_ms: int | None
    until_ms: int | None

    def __post_init__(self) -> None:
        if self.is_filtered if self.everything else not (self.words or self.is_filtered):
            raise OptionError(_IN_ONE_WAY)
        if self.status is not None and self.status not in RUNNABLE:
            raise OptionError(
                f"--status is '{self.status}', but only batches that are {' or '.join(RUNNABLE)}"
                " can be run; name one of these statuses."
            )

    @property
    def is_filtered(self) -> bool:
        """Whether ``--status``, ``--since`` or ``--until`` filters the batches."""
        return any(value is not None for value in (self.status, self.since_ms, self.until_ms))

    def includes(self, batch: BatchRecord) -> bool:
        """Whether a failed batch has the selected status and was planned in the time range."""
        return (
            self.status in {None, batch.status}
            and (self.since_ms is None or batch.created_time_ms >= self.since_ms)
            and (self.until_ms is None or batch.created_time_ms < self.until_ms)
        )


def _found(
    ledger: Ledger, url: str, choice: Choice, work: "Work", given: Mapping[str, str]
) -> tuple[list[BatchRecord], dict[str, SourceAccess]]:
    batches = _chosen(ledger, url, choice)
    options = {**(work.options(batches[0].gate) if batches else {}), **given}
    gate_of = {batch.batch_key: batch.gate for batch in batches}
    return batches, source_access(ledger, gate_of, options)


def _chosen(ledger: Ledger, url: str, choice: Choice) -> list[BatchRecord]:
    is_gate = choice.everything or choice.is_filtered
    named = [gate_or_batch(ledger, item, url, is_gate=is_gate) for item in choice.words]
    keyed = {item.batch_key: item for item in named if isinstance(item, BatchRecord)}
    gate = next((item for item in named if isinstance(item, str)), None)
    if gate is not None and len(named) > 1:
        raise OptionError(_IN_ONE_WAY)
    for batch in keyed.values():
        _refuse_unless_runnable(ledger, batch)
    batches = list(keyed.values())
    if not keyed:
        batches = [b for b in ledger.batches.failed(gate, _NO_LIMIT) if choice.includes(b)]
    gates = sorted({batch.gate for batch in batches})
    if len(gates) > 1:
        raise OptionError(
            f"The selected batches belong to several gates ({', '.join(map(repr, gates))}), but a"
            " handler belongs to one gate; name one of the gates."
        )
    return sorted(batches, key=lambda batch: (batch.created_time_ms, batch.batch_key))


def _refuse_unless_runnable(ledger: Ledger, batch: BatchRecord) -> None:
    key = batch.batch_key
    match batch.status:
        case Status.FAILED:
            return
        case Status.BACKFILLING:
            now_ms = ledger.database_time_ms()
            if owner_word(batch, now_ms) != "busy":
                return
            why = (
                "is run by another backfill, whose lease lasts at least until"
                f" {words.full_time(batch.lease_until_ms, now_ms)}; wait for its outcome"
            )
        case Status.IN_PROGRESS:
            why = (
                "is in_progress, so the live stream runs it; if the stream has ended, start its"
                " query again, which runs the batch or marks it as failed"
            )
        case Status.SUCCESS:
            why = (
                "is success, so it is processed; name a failed batch, as `headrace failures` lists"
            )
        case Status.DEAD:
            error = (
                ""
                if batch.error is None
                else f", by {words.printable(words.short_error(batch.error))}"
            )
            why = (
                f"is dead{error}, which is final; send records that are kept as dead letters"
                " again with `headrace dead-letters send`; for a whole batch, read the ranges"
                f" that `headrace batches {key}` lists with Spark itself"
            )
    raise OptionError(f"Batch {key} of gate {batch.gate!r} {why}.")


class Work(NamedTuple):
    """Everything that a backfill needs to run batches: source options, handlers, and the ledger."""

    options: Callable[[str], dict[str, str]]
    """Returns the source options of a gate as its flow declares them; empty with ``--handler``."""
    handler: Callable[[str], "Handler"]
    ledger: str
    """URL of the ledger: the flow's own, or the value of ``--ledger``."""


def work_of(handler: str | None, transform: str | None, flow: str | None, ledger: str) -> Work:
    """Return source options, handlers and the ledger's URL for ``--handler`` or ``--flow``.

    Raise OptionError unless exactly one of ``--handler`` and ``--flow`` is given.
    """
    if flow is None:
        if handler is None:
            raise OptionError(
                "Neither --handler nor --flow is given; name the function that handles each"
                " batch with --handler module:function, or the flow that has the gate as a stage"
                " with --flow module:flow."
            )
        handle = load_handler(handler, transform)
        return Work(lambda _gate: {}, lambda _gate: handle, ledger)
    if handler is not None or transform is not None:
        option = "--handler" if handler is not None else "--transform"
        raise OptionError(
            f"--flow is {flow!r}, and {option} is given too; leave {option} out, because the"
            " flow's stage has its own."
        )
    return _work_of_flow(flow, ledger)


def _work_of_flow(name: str, ledger: str) -> Work:
    named = load_flow(name)
    url = opt.ledger_of_flow(named, ledger)
    from headrace.flow import reader_options, writing_handler  # noqa: PLC0415  (it brings Spark)

    flow = named
    stages = {flow.gate(stage.name): stage for stage in flow.graph.stages.values()}

    def stage_of(gate: str) -> "Stage":
        if gate not in stages:
            raise OptionError(
                f"The batches belong to the gate {gate!r}, which is no stage of flow"
                f" {flow.name!r}; the stages of the flow have the gates"
                f" {', '.join(map(repr, stages))}."
            )
        return stages[gate]

    def handler(gate: str) -> "Handler":
        stage = stage_of(gate)
        handle, derive = writing_handler(flow, stage), stage.derive
        return handle if derive is None else lambda df, batch: handle(derive(df), batch)

    return Work(lambda gate: reader_options(flow, stage_of(gate)), handler, url)


def _print_plan(
    ledger: Ledger,
    batches: Sequence[BatchRecord],
    sources: Mapping[str, SourceAccess],
    *,
    as_json: bool,
) -> None:
    gone_of = {
        batch.batch_key: sources[batch.batch_key].connector.gone(
            sources[batch.batch_key].options,
            batch.open_ranges(ledger.batches.ranges(batch.batch_key)),
        )
        for batch in batches
    }
    if as_json:
        for batch in batches:
            out.print_json(
                {
                    "batch_key": batch.batch_key,
                    "created_time_ms": batch.created_time_ms,
                    "gate": batch.gate,
                    "records": batch.records_left,
                    "attempts": batch.attempts,
                    "error": batch.error and asdict(batch.error),
                    "gone": [asdict(item) for item in gone_of[batch.batch_key]],
                }
            )
        return
    if batches:
        out.show(plan_table(batches, gone_of))
        typer.echo()
    records = words.plural(sum(batch.records_left for batch in batches), "record")
    typer.echo(
        f"{words.plural(len(batches), 'batch')} with {records} would be run; nothing was claimed."
    )


def plan_table(
    batches: Sequence[BatchRecord], gone_of: Mapping[str, Sequence[OffsetRange]]
) -> Table:
    """Return a table of the batches that a backfill would run.

    ``gone_of`` maps each batch key to the ranges whose records are no longer in the source.
    """

    def still_there(batch: BatchRecord) -> str:
        left = batch.records_left - sum(item.count for item in gone_of[batch.batch_key])
        if left == batch.records_left:
            return "all"
        return f"only {words.count(left)}" if left else "nothing"

    return out.table(
        batches,
        ("key", key_text),
        ("planned", lambda batch: words.short_time(batch.created_time_ms)),
        ("gate|16", lambda batch: out.line(batch.gate)),
        (">records", lambda batch: words.count(batch.records_left)),
        ("in Kafka", still_there),
        ("*error", lambda batch: out.Shortened(words.short_error(batch.error))),
    )
