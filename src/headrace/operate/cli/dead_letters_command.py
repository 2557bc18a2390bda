"""``headrace dead-letters``: lists, exports, drops and sends dead letters."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.core.timing import wall_clock_ms
from headrace.errors import OptionError
from headrace.gate import DeadLetter, DeadLetterRecord, DeadLetterStatus, Ledger, redact_url
from headrace.operate.cli import printing as out, shared_options as opt
from headrace.operate.cli.printing import show_or_watch
from headrace.operate.cli.shared_options import load_function
from headrace.operate.status import words
from headrace.operate.status.letter_sending import LetterSender

PAGE: Final = 100
"""Largest number of dead letters in memory at a time."""

_RECORD: Final = ("key", "value", "headers")
_HIGHEST_ID: Final = 2**63 - 1
"""Highest id in any database; drivers refuse higher numbers in a query."""

dead_letters = typer.Typer(
    help="List, export, send or drop dead letters: records that cannot be processed.",
    no_args_is_help=True,
    add_completion=False,
)

Statuses = Annotated[
    list[DeadLetterStatus] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help=f"Show those of this status: {', '.join(DeadLetterStatus)}; can be repeated.",
        show_default="waiting",
    ),
]


@dead_letters.command("list")
@opt.sharing(opt.Listing)
def list_letters(listing: opt.Listing, *, gate: opt.Gate = None, status: Statuses = None) -> None:
    """List dead letters, oldest first, by when they were stored; JSON leaves out the records."""
    statuses = status or [DeadLetterStatus.WAITING]
    with Ledger.open(listing.ledger, create=False) as opened:

        def draw(_height: int | None) -> RenderableType | None:
            now_ms = wall_clock_ms()
            since_ms, until_ms = listing.window_ms(now_ms)
            gates = opt.gates_of(opened, gate, listing.ledger)
            rows = opened.dead_letters.oldest(
                gate,
                statuses=statuses,
                limit=listing.limit + 1,
                since_ms=since_ms,
                until_ms=until_ms,
            )
            shown = rows[: listing.limit]
            if listing.as_json:
                for record in shown:
                    out.print_json(letter_values(record))
                return None
            if not shown:
                return Text(f"There is no dead letter that is {' or '.join(statuses)}.")
            last = "value" if set(statuses) == {DeadLetterStatus.WAITING} else "resolution"
            view = letters_table(shown, now_ms, name_gates=len(gates) > 1, last=last)
            return Group(view, *out.if_more(len(rows), listing.limit, "oldest"))

        show_or_watch(draw, watch=listing.watch)


@dead_letters.command("export")
def export_letters(
    *,
    gate: opt.Gate = None,
    status: Statuses = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
) -> None:
    """Write all dead letters, with their records, as one JSON object per line.

    Key, value and the headers' values are in base64, or null where there is none.
    """
    with Ledger.open(ledger, create=False) as opened:
        opt.gates_of(opened, gate, ledger)
        for page in _pages(opened, gate, status or [DeadLetterStatus.WAITING]):
            for record in page:
                headers = record.letter.headers
                out.print_json(
                    {
                        **letter_values(record),
                        "key": _base64(record.letter.key),
                        "value": _base64(record.letter.value),
                        "sent_value": _base64(record.sent_value),
                        "headers": headers and [[name, _base64(value)] for name, value in headers],
                    }
                )


@dead_letters.command("drop")
def drop_letters(
    ids: Annotated[
        list[int],
        typer.Argument(metavar="ID", min=1, help="Their numbers, as the list has them."),
    ],
    why: Annotated[
        str, typer.Option(metavar="REASON", help="Give the reason, kept with the letter.")
    ],
    by: opt.Author = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
) -> None:
    """Resolve dead letters without processing them, and say why; this is final."""
    if not why.strip():
        raise OptionError("--why is empty; say why the record need not be processed.")
    # Only an existing ledger can be changed: none is created here.
    with Ledger.open(ledger, create=False) as reader:
        gates = {number: _waiting_letter(reader, number, ledger, "dropped").gate for number in ids}
    who = opt.acting_user(by)
    with Ledger.join(ledger) as opened:
        for number, gate in gates.items():
            if not opened.repairs.drop_letters(gate, [number], who, why.strip()):
                _waiting_letter(opened, number, ledger, "dropped")
                raise OptionError(
                    f"Dead letter {number} is being sent at this time, so it is not dropped; try"
                    " again in two minutes, if it waits then."
                )
            typer.echo(f"Dead letter {number} is dropped.")


@dead_letters.command("send")
def send_letters(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID", help="Their numbers, as the list has them; with --all, a gate."
        ),
    ] = None,
    *,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    everything: Annotated[
        bool, typer.Option("--all", help="Send all that wait, or all of the gate that is named.")
    ] = False,
    topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Send them to this topic, and not back to their own."),
    ] = None,
    edit: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Called as edit(letter), a headrace.gate.ledger.DeadLetter; key, value and headers"
            " of what it answers are sent, and nothing if it answers None.",
        ),
    ] = None,
    value: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Send the bytes of this file in the place of the value of one letter; its key and "
            "headers stay, and the ledger keeps both values.",
        ),
    ] = None,
    option: opt.SourceOption = None,
    options_file: opt.OptionsFile = None,
) -> None:
    """Send dead letters that wait to Kafka again, by ID or with --all.

    Headers say where each was: headrace.dead-letter.topic, .partition and .offset.
    A letter is sent when the brokers have acknowledged it.
    Until then nobody else can send or drop it.
    If this process dies in between, it waits again after two minutes, and is sent once more then.
    """
    if not words and not everything:
        raise OptionError("Name the letters by their IDs, or say --all, or --all GATE.")
    if everything and len(words or ()) > 1:
        raise OptionError("With --all name one gate, or none for those of all gates.")
    gate = words[0] if words and everything else None
    ids = [] if everything else _ids(words or ())
    options = opt.source_options(option or (), options_file)
    if value is not None and (len(ids) != 1 or edit is not None):
        raise OptionError("--value is for one letter: name its ID, and leave --edit out.")
    change = None if edit is None else load_function("--edit", edit)
    if value is not None:
        edit, change = f"--value {value}", partial(_with_value, _bytes_of(value))
    # Only an existing ledger has dead letters: none is created here.
    with Ledger.open(ledger, create=False) as reader:
        opt.gates_of(reader, gate, ledger)
        for number in ids:
            _waiting_letter(reader, number, ledger, "sent")
    with Ledger.open(ledger) as opened:
        sender = LetterSender(opened, options, topic, edit, change, typer.echo)
        if everything:
            for page in _pages(opened, gate, [DeadLetterStatus.WAITING]):
                sender.send(page)
        else:
            chosen = dict.fromkeys(ids)
            sender.send([_waiting_letter(opened, number, ledger, "sent") for number in chosen])
    skipped = f", {sender.skipped} skipped by {edit}" if edit and value is None else ""
    typer.echo(f"{sender.outcome()}{skipped}.")


def _ids(words: Sequence[str]) -> list[int]:
    wrong = next((word for word in words if not word.isdecimal() or not int(word)), None)
    if wrong is not None:
        raise typer.BadParameter(
            f"{wrong!r} is not a dead letter's number; all of a gate are sent with --all GATE.",
            param_hint="ID",
        )
    return [int(word) for word in words]


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise OptionError(
            f"--value is {str(file)!r}, which cannot be read ({error.strerror}); name a file with"
            " the value."
        ) from error


def _with_value(value: bytes, letter: DeadLetter) -> DeadLetter:
    return replace(letter, value=value)


def _pages(
    ledger: Ledger, gate: str | None, statuses: Sequence[DeadLetterStatus]
) -> Iterator[tuple[DeadLetterRecord, ...]]:
    last = 0
    while page := ledger.dead_letters.oldest(gate, statuses=statuses, limit=PAGE, after=last):
        yield page
        last = page[-1].dead_letter_id


def _waiting_letter(ledger: Ledger, letter_id: int, url: str, to_be: str) -> DeadLetterRecord:
    record = ledger.dead_letters.get(letter_id) if letter_id <= _HIGHEST_ID else None
    if record is None:
        raise OptionError(
            f"The ledger {redact_url(url)} has no dead letter {letter_id}; `headrace dead-letters"
            " list` shows those that wait."
        )
    if record.status is not DeadLetterStatus.WAITING:
        raise OptionError(
            f"Dead letter {letter_id} was {record.status} already ({record.resolution}); only one "
            f"that waits can be {to_be}."
        )
    return record


def letter_values(record: DeadLetterRecord) -> dict[str, Any]:
    """Return a dead letter for JSON, without the record itself; times are ms since the epoch."""
    values = asdict(record)
    letter, _ = values.pop("letter"), values.pop("sent_value")
    shown = {name: value for name, value in letter.items() if name not in _RECORD}
    return {**values, **shown}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode("ascii")


def letters_table(
    records: Sequence[DeadLetterRecord], now_ms: int, *, name_gates: bool, last: str = ""
) -> Table:
    """Return a table of dead letters; the last column is ``value``, ``resolution`` or none."""
    details: dict[str, Callable[[DeadLetterRecord], str]] = {
        "value": lambda record: (record.letter.value or b"").decode(errors="replace"),
        "resolution": lambda record: f"{record.status}: {record.resolution or words.UNKNOWN}",
    }
    return out.table(
        records,
        (">id", lambda record: str(record.dead_letter_id)),
        ("gate|16", lambda record: out.line(record.gate)) if name_gates else None,
        ("record", lambda record: out.line(_place(record.letter))),
        (">age", lambda record: words.duration(now_ms - record.created_ms)),
        ("*error", lambda record: out.Shortened(words.short_error(record.letter.error))),
        (f"*{last}", lambda record: out.line(details[last](record))) if last else None,
    )


def _place(letter: DeadLetter) -> str:
    return f"{letter.topic}-{letter.partition} at {letter.offset}"
