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
"""Number of dead letters that are read from the ledger at a time."""

_RECORD: Final = ("key", "value", "headers")
_HIGHEST_ID: Final = 2**63 - 1
"""Largest id of a dead letter; database drivers refuse larger numbers in a query."""

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
        help=f"Select dead letters with this status: {', '.join(DeadLetterStatus)}; can be"
        " repeated.",
        show_default="waiting",
    ),
]


@dead_letters.command("list")
@opt.sharing(opt.Listing)
def list_letters(listing: opt.Listing, *, gate: opt.Gate = None, status: Statuses = None) -> None:
    """List dead letters in the order in which they were stored, the oldest first.

    JSON leaves out key, value and headers of the records.
    """
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
    """Print all dead letters with their records, one JSON object on each line.

    Keys, values and values of headers are in base64; null stands for a missing one.
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
        typer.Argument(
            metavar="ID",
            min=1,
            help="Numbers of the dead letters, as headrace dead-letters list shows them.",
        ),
    ],
    why: Annotated[
        str, typer.Option(metavar="REASON", help="The reason, which is kept with the dead letter.")
    ],
    by: opt.Author = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
) -> None:
    """Drop dead letters: resolve them without processing, with a reason. This is final."""
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
                    f"Another process is sending dead letter {number}, so it is not dropped; if it"
                    " still waits in two minutes, try again."
                )
            typer.echo(f"Dead letter {number} is dropped.")


@dead_letters.command("send")
def send_letters(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Numbers of the dead letters, as in headrace dead-letters list; with --all, a"
            " gate.",
        ),
    ] = None,
    *,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    everything: Annotated[
        bool, typer.Option("--all", help="Send all waiting dead letters, or all of the named gate.")
    ] = False,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC", help="Send the dead letters to this topic instead of their own topics."
        ),
    ] = None,
    edit: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Function that is called as edit(letter) with a headrace.gate.ledger.DeadLetter."
            " Key, value and headers of the returned letter are sent; if it returns None,"
            " the letter is not sent.",
        ),
    ] = None,
    value: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Send the bytes of this file instead of the dead letter's value, with its key"
            " and headers. The ledger keeps both values. For one dead letter only.",
        ),
    ] = None,
    option: opt.SourceOption = None,
    options_file: opt.OptionsFile = None,
) -> None:
    """Send waiting dead letters to Kafka again, by ID or with --all.

    The headers headrace.dead-letter.topic, .partition and .offset have the original position of
    each record.
    A dead letter is resolved when the brokers have acknowledged it.
    Until then no other process can send or drop it.
    If this process dies before that, the dead letter waits again after two minutes, and the next
    headrace dead-letters send sends it once more.
    """
    if not words and not everything:
        raise OptionError("No dead letter is named; name IDs, or give --all, or --all GATE.")
    if everything and len(words or ()) > 1:
        raise OptionError(
            "--all takes at most one gate; name one gate, or none to send the dead letters of"
            " all gates."
        )
    gate = words[0] if words and everything else None
    ids = [] if everything else _ids(words or ())
    options = opt.source_options(option or (), options_file)
    if value is not None and (len(ids) != 1 or edit is not None):
        raise OptionError(
            "--value replaces the value of one dead letter; name one ID, and leave --edit out."
        )
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
            f"{wrong!r} is not the number of a dead letter; --all GATE sends all dead letters of"
            " a gate.",
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
            " list` shows the dead letters that wait."
        )
    if record.status is not DeadLetterStatus.WAITING:
        raise OptionError(
            f"Dead letter {letter_id} was {record.status} already ({record.resolution}); only a"
            f" dead letter that waits can be {to_be}."
        )
    return record


def letter_values(record: DeadLetterRecord) -> dict[str, Any]:
    """Return a dead letter for JSON, without key, value and headers; times are in epoch ms."""
    values = asdict(record)
    letter, _ = values.pop("letter"), values.pop("sent_value")
    shown = {name: value for name, value in letter.items() if name not in _RECORD}
    return {**values, **shown}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode("ascii")


def letters_table(
    records: Sequence[DeadLetterRecord], now_ms: int, *, name_gates: bool, last: str = ""
) -> Table:
    """Return a table with a line for each dead letter.

    ``last`` is the last column: ``value`` or ``resolution``. Default: the error is the last column.
    """
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
