"""``headrace failures``: what has failed and is not made good, and what to do about it."""

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.batches_view import (
    batch_values,
    key_text,
    new_table,
    owner_words,
    planned_or_counted,
    short_error,
    status_text,
)
from headrace.cli.choices import Limit, Since, Until
from headrace.cli.exit_status import OPEN
from headrace.cli.letters_view import letter_values, letters_table
from headrace.cli.lines import line
from headrace.cli.status import DEFAULT_LEDGER, LedgerUrl, gates_of
from headrace.cli.times import window_ms
from headrace.cli.words import count, duration, plural
from headrace.ledger import BatchRecord, DeadLetterRecord, Ledger, LetterStatus, Status
from headrace.ledger.base import wall_clock_ms


def failures(
    *,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    gate: Annotated[str | None, typer.Option(help="Only of this gate.")] = None,
    since: Since = None,
    until: Until = None,
    error: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Only because of this exception: ValueError."),
    ] = None,
    limit: Limit = 20,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object per batch or letter, each on its own line."),
    ] = False,
) -> None:
    """List batches that failed and are not made good, and dead letters that wait.

    A dead letter is as old as its being kept.
    backfilling, busy: somebody works on it.
    backfilling, gone: whoever did has ended; the next backfill takes it.
    Exit status 0: there is none of those asked for.
    Exit status 3: there are some.
    Exit status 1: there was an error, and nobody knows.
    """
    now_ms = wall_clock_ms()
    since_ms, until_ms = window_ms(since, until, now_ms)
    with Ledger.open(ledger, create=False) as opened:
        gates = gates_of(opened, gate, ledger)
        batches = opened.failures(
            gate, limit + 1, since_ms=since_ms, until_ms=until_ms, error_class=error
        )
        letters = opened.dead_letters(
            gate,
            statuses=[LetterStatus.WAITING],
            limit=limit + 1,
            since_ms=since_ms,
            until_ms=until_ms,
            error_class=error,
        )
        database_ms = opened.database_time_ms()
    if as_json:
        _print_json(batches[:limit], letters[:limit])
    elif batches or letters:
        _print_tables(batches, letters, limit, database_ms, name_gates=len(gates) > 1)
    elif any((since, until, error)):
        typer.echo("There is no such failure.")
    else:
        typer.echo("Nothing has failed that is not made good, and no dead letter waits.")
    if batches or letters:
        raise typer.Exit(OPEN)


def _print_json(batches: Sequence[BatchRecord], letters: Sequence[DeadLetterRecord]) -> None:
    for batch in batches:
        typer.echo(json.dumps({"what": "batch", **batch_values(batch)}))
    for letter in letters:
        typer.echo(json.dumps({"what": "dead letter", **letter_values(letter)}))


def _print_tables(
    batches: Sequence[BatchRecord],
    letters: Sequence[DeadLetterRecord],
    limit: int,
    now_ms: int,
    *,
    name_gates: bool,
) -> None:
    console = Console()
    if batches:
        console.print(line(_headline("batch", len(batches), limit), style="bold red"))
        console.print(_batches_table(batches[:limit], now_ms, name_gates=name_gates))
        console.print(line("headrace batches KEY shows one in full.", style="dim"))
    if batches and letters:
        console.print()
    if letters:
        console.print(line(_headline("dead letter", len(letters), limit), style="bold red"))
        console.print(letters_table(letters[:limit], now_ms, name_gates=name_gates))
        console.print(
            line("headrace letters exports them, sends them again, or drops them.", style="dim")
        )


def _headline(noun: str, number: int, limit: int) -> str:
    if number > limit:
        return f"More than {plural(limit, noun)}, of which these are the first; --limit shows more:"
    return f"{plural(number, noun)}:"


def _batches_table(batches: Sequence[BatchRecord], now_ms: int, *, name_gates: bool) -> Table:
    table = new_table()
    table.add_column("key", no_wrap=True)
    if name_gates:
        table.add_column("gate", no_wrap=True, max_width=16)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("records", justify="right", no_wrap=True)
    table.add_column("error", no_wrap=True, ratio=1)
    for batch in batches:
        status = status_text(batch)
        if batch.status is Status.BACKFILLING:
            status.append(f", {owner_words(batch, now_ms)}")
        table.add_row(
            key_text(batch),
            *([line(batch.gate)] if name_gates else []),
            duration(now_ms - batch.created_time_ms),
            status,
            count(planned_or_counted(batch)),
            "" if batch.error is None else line(short_error(batch.error)),
        )
    return table
