"""``headrace failures`` lists unresolved failures; ``headrace drop`` resolves dead batches."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.core.timing import wall_clock_ms
from headrace.errors import OptionError
from headrace.gate import BatchRecord, DeadLetterRecord, DeadLetterStatus, Ledger, Missed, Status
from headrace.operate.cli import printing as out, shared_options as opt
from headrace.operate.cli.batches_command import (
    batch_values,
    find_batch,
    key_text,
    owner_word,
    status_text,
)
from headrace.operate.cli.dead_letters_command import letter_values, letters_table
from headrace.operate.cli.exits import ExitStatus
from headrace.operate.cli.printing import show_or_watch
from headrace.operate.status import words

_NOTHING: Final = (
    "Nothing is unresolved: no batch has failed, no dead letter waits, and no known loss waits"
    " to be accepted; headrace verify proves that no offset was left out."
)

ErrorClass = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS", help="Show only failures with this class of exception, such as ValueError."
    ),
]


@opt.sharing(opt.Listing)
def failures(
    listing: opt.Listing,
    *,
    gate: opt.Gate = None,
    error: ErrorClass = None,
) -> None:
    """List unresolved failures: failed batches, waiting dead letters, lost and skipped records.

    The age of a dead letter counts from the time when it was stored.
    The status "backfilling, busy" means that a backfill runs the batch.
    The status "backfilling, gone" means that the batch's backfill has ended; the next backfill
    claims it.
    Exit status 0: there is no such failure.
    Exit status 3: there are such failures.
    Exit status 1: there was an error, so the answer is not known.
    """
    limit = listing.limit
    filtered = any((listing.since, listing.until, error))
    is_open = False
    with Ledger.open(listing.ledger, create=False) as opened:

        def draw(_height: int | None) -> RenderableType | None:
            nonlocal is_open
            since_ms, until_ms = listing.window_ms(wall_clock_ms())
            several = len(opt.gates_of(opened, gate, listing.ledger)) > 1
            batches = opened.batches.unresolved(
                gate, limit + 1, since_ms=since_ms, until_ms=until_ms, error_class=error
            )
            letters = opened.dead_letters.oldest(
                gate,
                statuses=[DeadLetterStatus.WAITING],
                limit=limit + 1,
                since_ms=since_ms,
                until_ms=until_ms,
                error_class=error,
            )
            own = {} if filtered else _missed(opened, gate)
            is_open = bool(batches or letters or own)
            if listing.as_json:
                _print_values(batches[:limit], letters[:limit], own)
                return None
            if batches or letters:
                now_ms = opened.database_time_ms()
                shown = failures_view(batches, letters, limit, now_ms, name_gates=several)
                return Group(shown, *map(_missed_line, own.items()))
            if own:
                return Group(*map(_missed_line, own.items()))
            return Text("There is no such failure." if filtered else _NOTHING)

        show_or_watch(draw, watch=listing.watch)
    if is_open:
        raise typer.Exit(ExitStatus.OPEN)


def _missed(ledger: Ledger, gate: str | None) -> Mapping[str, Missed]:
    by_gate = ledger.proofs.all_missed() if gate is None else {gate: ledger.proofs.missed(gate)}
    return {name: counts for name, counts in by_gate.items() if counts.offsets}


def _missed_line(found: tuple[str, Missed]) -> Text:
    """Return a line with the numbers of a gate's lost records and of its skipped records."""
    gate, missed = found
    counts = (
        f"{words.count(missed.lost)} records are lost and {words.count(missed.skipped)} skipped"
    )
    sentence = f"{gate}: {counts}; headrace verify {shlex.quote(gate)} says which."
    return Text(words.printable(sentence), style="bold red")


def _print_values(
    batches: Sequence[BatchRecord],
    letters: Sequence[DeadLetterRecord],
    missed: Mapping[str, Missed],
) -> None:
    for batch in batches:
        out.print_json({"what": "batch", **batch_values(batch)})
    for letter in letters:
        out.print_json({"what": "dead letter", **letter_values(letter)})
    for gate, offsets in missed.items():
        counts = {"lost": offsets.lost, "skipped": offsets.skipped}
        out.print_json({"what": "missed", "gate": gate, **counts})


def failures_view(
    batches: Sequence[BatchRecord],
    letters: Sequence[DeadLetterRecord],
    limit: int,
    now_ms: int,
    *,
    name_gates: bool,
) -> RenderableType:
    """Return a view of failed batches and dead letters, at most the first ``limit`` of each."""
    shown: list[RenderableType] = []
    if batches:
        shown += [
            _headline("batch", len(batches), limit),
            _batches_table(batches[:limit], now_ms, name_gates=name_gates),
            out.line("headrace batches KEY shows a batch in full.", style="dim"),
        ]
    if batches and letters:
        shown.append(Text())
    if letters:
        hint = "headrace dead-letters exports them, sends them again, or drops them."
        shown += [
            _headline("dead letter", len(letters), limit),
            letters_table(letters[:limit], now_ms, name_gates=name_gates),
            out.line(hint, style="dim"),
        ]
    return Group(*shown)


def _headline(noun: str, number: int, limit: int) -> Text:
    counted = words.plural(min(number, limit), noun)
    if number > limit:
        counted = f"More than {counted}, of which these are the first; --limit shows more"
    return out.line(f"{counted}:", style="bold red")


def _batches_table(batches: Sequence[BatchRecord], now_ms: int, *, name_gates: bool) -> Table:
    def status(batch: BatchRecord) -> Text:
        text = status_text(batch)
        if batch.status is Status.BACKFILLING:
            text.append(f", {owner_word(batch, now_ms)}")
        return text

    return out.table(
        batches,
        ("key", key_text),
        ("gate|16", lambda batch: out.line(batch.gate)) if name_gates else None,
        (">age", lambda batch: words.duration(now_ms - batch.created_time_ms)),
        ("status", status),
        (">records", lambda batch: words.count(words.planned_or_counted(batch))),
        ("*error", lambda batch: out.Shortened(words.short_error(batch.error))),
    )


def drop(
    keys: Annotated[
        list[str],
        typer.Argument(metavar="KEY", help="Keys of the batches, or the first digits of the keys."),
    ],
    why: Annotated[
        str, typer.Option(metavar="REASON", help="The reason, which is kept with the batch.")
    ],
    by: opt.Author = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
) -> None:
    """Drop dead batches: resolve them without processing, with a reason. This is final.

    A batch is dead when its attempts are spent, or when its records have left Kafka.
    """
    if not why.strip():
        raise OptionError("--why is empty; say why the batch need not be processed.")
    # Only an existing ledger can be changed: none is created here.
    with Ledger.open(ledger, create=False) as reader:
        batches = [find_batch(reader, key, ledger) for key in keys]
    for batch in batches:
        _refuse_unless_dead(batch)
    who = opt.acting_user(by)
    with Ledger.join(ledger) as opened:
        for batch in batches:
            if not opened.repairs.drop_batch(batch.gate, batch.batch_key, who, why.strip()):
                _refuse_unless_dead(find_batch(opened, batch.batch_key, ledger))
            typer.echo(f"Batch {batch.batch_key} is dropped.")


def _refuse_unless_dead(batch: BatchRecord) -> None:
    if batch.status is not Status.DEAD:
        raise OptionError(
            f"Batch {batch.batch_key} is {batch.status}; only a dead batch can be dropped."
        )
    if batch.resolution is not None:
        raise OptionError(
            f"Batch {batch.batch_key} was dropped already ({batch.resolution}); no further action"
            " is needed."
        )
