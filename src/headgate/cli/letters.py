"""``headgate letters``: the records that cannot be processed, and what is done about them."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer
from rich.console import Console

from headgate.cli.choices import Limit
from headgate.cli.letters_view import letter_values, letters_table, whole_letter_values
from headgate.cli.status import DEFAULT_LEDGER, LedgerUrl, gates_of
from headgate.errors import OptionError
from headgate.ledger import DeadLetterRecord, Ledger, LetterStatus, redact_url
from headgate.ledger.base import wall_clock_ms

PAGE: Final = 100
"""Dead letters that are in memory at a time."""

HIGHEST_ID: Final = 2**63 - 1
"""No database has a higher one, or lets itself be asked for it."""

letters = typer.Typer(
    help="List, export, send or drop dead letters: records that cannot be processed.",
    no_args_is_help=True,
)

GateName = Annotated[str | None, typer.Option("--gate", help="Only of this gate.")]
Statuses = Annotated[
    list[LetterStatus] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help=f"Those that stand so: {', '.join(LetterStatus)}; can be repeated.",
        show_default="waiting",
    ),
]


@letters.command("list")
def list_letters(
    ledger: LedgerUrl = DEFAULT_LEDGER,
    gate: GateName = None,
    status: Statuses = None,
    limit: Limit = 20,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object per letter, without the record's content."),
    ] = False,
) -> None:
    """List dead letters, oldest first."""
    statuses = status or [LetterStatus.WAITING]
    with Ledger.open(ledger, create=False) as opened:
        gates = gates_of(opened, gate, ledger)
        found = opened.dead_letters(gate, statuses=statuses, limit=limit + 1)
    shown = found[:limit]
    if as_json:
        for each in shown:
            typer.echo(json.dumps(letter_values(each)))
        return
    if not shown:
        typer.echo(f"There is no dead letter that is {' or '.join(statuses)}.")
        return
    last = "value" if set(statuses) == {LetterStatus.WAITING} else "resolution"
    table = letters_table(shown, wall_clock_ms(), name_gates=len(gates) > 1, last=last)
    Console().print(table)
    if len(found) > limit:
        typer.echo(f"\nThese are the oldest {limit}; --limit shows more.")


@letters.command()
def export(
    ledger: LedgerUrl = DEFAULT_LEDGER, gate: GateName = None, status: Statuses = None
) -> None:
    """Write all dead letters, with their records, as one JSON object per line.

    Key, value and the headers' values are in base64, or null where there is none.
    """
    with Ledger.open(ledger, create=False) as opened:
        gates_of(opened, gate, ledger)
        for each in _all_letters(opened, gate, status or [LetterStatus.WAITING]):
            typer.echo(json.dumps(whole_letter_values(each)))


@letters.command()
def drop(
    ids: Annotated[
        list[int], typer.Argument(metavar="ID", min=1, help="Which; the list has their ids.")
    ],
    reason: Annotated[str, typer.Option(help="Why; kept with the letter.")],
    ledger: LedgerUrl = DEFAULT_LEDGER,
) -> None:
    """Say that dead letters are not to be processed any more, and why; this is final."""
    if not reason.strip():
        raise OptionError("--reason is empty; say why the record need not be processed.")
    # What is to be changed is there already: a ledger that is not is never made here.
    with Ledger.open(ledger, create=False) as reader:
        for each in ids:
            _refuse_unless_waiting(_letter(reader, each), each, ledger)
    with Ledger.open(ledger) as opened:
        for each in ids:
            if not opened.resolve(each, LetterStatus.DROPPED, reason.strip()):
                _refuse_unless_waiting(_letter(opened, each), each, ledger)
            typer.echo(f"Dead letter {each} is dropped.")


def _all_letters(
    ledger: Ledger, gate: str | None, statuses: Sequence[LetterStatus]
) -> Iterator[DeadLetterRecord]:
    last = 0
    while page := ledger.dead_letters(gate, statuses=statuses, limit=PAGE, after=last):
        yield from page
        last = page[-1].dead_letter_id


def _letter(ledger: Ledger, letter_id: int) -> DeadLetterRecord | None:
    return ledger.dead_letter(letter_id) if letter_id <= HIGHEST_ID else None


def _refuse_unless_waiting(letter: DeadLetterRecord | None, letter_id: int, url: str) -> None:
    if letter is None:
        raise OptionError(
            f"The ledger {redact_url(url)} has no dead letter {letter_id}; `headgate letters list` "
            "shows those that wait."
        )
    if letter.status is not LetterStatus.WAITING:
        raise OptionError(
            f"Dead letter {letter_id} was {letter.status} already ({letter.resolution}); only one "
            "that waits can be dropped."
        )
