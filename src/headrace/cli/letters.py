"""``headrace letters``: the records that cannot be processed, and what is done about them."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer
from rich.console import Console

from headrace.cli.choices import Limit
from headrace.cli.letters_view import letter_values, letters_table, whole_letter_values
from headrace.cli.status import DEFAULT_LEDGER, LedgerUrl, gates_of
from headrace.errors import OptionError
from headrace.ledger import DeadLetterRecord, Ledger, LetterStatus, redact_url
from headrace.ledger.base import wall_clock_ms

_PAGE: Final = 100
"""Dead letters that are in memory at a time."""

_HIGHEST_ID: Final = 2**63 - 1
"""No database has a higher one, or lets itself be asked for it."""

letters = typer.Typer(
    help="List, export, send or drop dead letters: records that cannot be processed.",
    no_args_is_help=True,
    add_completion=False,
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
        for page in pages(opened, gate, status or [LetterStatus.WAITING]):
            for each in page:
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
            waiting_letter(reader, each, ledger, "dropped")
    with Ledger.open(ledger) as opened:
        for each in ids:
            if not opened.resolve(each, LetterStatus.DROPPED, reason.strip()):
                waiting_letter(opened, each, ledger, "dropped")
            typer.echo(f"Dead letter {each} is dropped.")


def pages(
    ledger: Ledger, gate: str | None, statuses: Sequence[LetterStatus]
) -> Iterator[tuple[DeadLetterRecord, ...]]:
    """All that stand so, oldest first."""
    last = 0
    while page := ledger.dead_letters(gate, statuses=statuses, limit=_PAGE, after=last):
        yield page
        last = page[-1].dead_letter_id


def waiting_letter(ledger: Ledger, letter_id: int, url: str, to_be: str) -> DeadLetterRecord:
    """A letter that waits.

    Args:
        ledger: Where it is.
        letter_id: Its number.
        url: The ledger's, as given.
        to_be: What it is to be: ``sent`` or ``dropped``.

    Raises:
        OptionError: There is none of this id, or it does not wait any more.
    """
    record = ledger.dead_letter(letter_id) if letter_id <= _HIGHEST_ID else None
    if record is None:
        raise OptionError(
            f"The ledger {redact_url(url)} has no dead letter {letter_id}; `headrace letters list` "
            "shows those that wait."
        )
    if record.status is not LetterStatus.WAITING:
        raise OptionError(
            f"Dead letter {letter_id} was {record.status} already ({record.resolution}); only one "
            f"that waits can be {to_be}."
        )
    return record
