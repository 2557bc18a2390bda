"""Printing of numbers, times, lines, tables, bars and JSON."""

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, TextIO, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headrace.operate.status.words import printable

NARROWEST_BAR: Final = 8
Row = TypeVar("Row")
_LEVELS: Final = "▁▂▃▄▅▆▇█"


def line(text: str, style: str = "") -> Text:
    """One printable line, cut where it is too long."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def batch_number(number: int | None) -> str:
    """Spark's number of a batch; empty before it has run."""
    return "" if number is None else f"#{number}"


def fitting(facts: Iterable[str], width: int) -> str:
    """The facts that fit into a line, each whole; the first stays, however long it is."""
    shown = ""
    for fact in map(printable, facts):
        longer = f"{shown} · {fact}" if shown else fact
        if not shown or cell_len(longer) <= width:
            shown = longer
    return shown


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts on one line, each whole or left out; the first is wrapped where it is too long."""

    facts: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(fitting(self.facts, options.max_width), no_wrap=False)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


@dataclass(frozen=True, slots=True)
class Shortened:
    """A text that is cut in its middle where it is too long: its end may be what matters.

    Attributes:
        lines: How many lines it may take.
    """

    text: str
    style: str = ""
    lines: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Lines are broken between words, which costs some of each.
        most = options.max_width if self.lines == 1 else options.max_width * self.lines * 9 // 10
        text = middle_cut(printable(self.text), most)
        yield Text(text, style=self.style, no_wrap=self.lines == 1, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(len(self.text), options.max_width))


def middle_cut(text: str, most: int) -> str:
    """The text in at most so many characters: its beginning, and what it ends with.

    A command in backquotes is whole, or left out.

    >>> middle_cut("AttributeError: 'Batch' object has no attribute 'kye'", 34)
    "AttributeError: 'Bat…tribute 'kye'"
    """
    if len(text) <= most or most < 4:
        return text
    ending = (most - 1) * 2 // 5
    first, last = most - 1 - ending, len(text) - ending
    for command in re.finditer("`[^`]+`", text):
        if command.start() < first < command.end():
            first = command.start()
        if command.start() < last < command.end():
            last = command.end()
    return f"{text[:first]}…{text[last:]}"


def table(
    rows: Iterable[Row],
    *columns: tuple[str, Callable[[Row], RenderableType]] | None,
    wide: bool = True,
) -> Table:
    """A table without rules.

    Args:
        rows: What has a line each.
        columns: A header, and what makes the cell of a row. A header that begins with ``>`` is
            aligned to the right, one with ``*`` takes the width that is left, and ``|16`` behind it
            is the most characters that its cells have. None is no column.
        wide: Whether it is as wide as the terminal.
    """
    made = Table(expand=wide, box=None, pad_edge=False, header_style="dim")
    present = [each for each in columns if each is not None]
    for header, _ in present:
        name, _, most = header.lstrip(">*").partition("|")
        made.add_column(
            name,
            no_wrap=True,
            justify="right" if header.startswith(">") else "left",
            ratio=1 if header.startswith("*") else None,
            max_width=int(most) if most else None,
        )
    for row in rows:
        made.add_row(*(cell(row) for _, cell in present))
    return made


def grid(rows: Iterable[tuple[RenderableType, ...]], columns: str = "") -> Table:
    """Rows without headers; each column is as wide as it needs to be.

    Args:
        rows: Their cells; a row may have fewer than others.
        columns: A letter for each column of one line: ``l`` and ``r`` for left and right, ``*`` for
            the rest of the width. Without letters, two columns that are wrapped.
    """
    made = Table.grid(expand=bool(columns), padding=(0, 2, 0, 0))
    for letter in columns:
        justify = "right" if letter == "r" else "left"
        made.add_column(no_wrap=True, justify=justify, ratio=1 if letter == "*" else None)  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*row)
    return made


class TextLines(logging.Formatter):
    """The local time, the level where it is more than information, and one line of text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return a record's line without its trace."""
        level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
        return f"{record.asctime} {level}{printable(record.message)}"


@contextmanager
def logged(
    stream: TextIO, lines: logging.Formatter | None = None, *, of: str | None = None
) -> Iterator[None]:
    """Write what is logged within to a stream, as `TextLines` if nothing else is said.

    ``of`` names the logger whose lines they are. Default: all, with warnings of other packages.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(lines or TextLines())
    logger = logging.getLogger(of)
    logger.addHandler(handler)
    logging.getLogger(of or "headrace").setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def show(picture: RenderableType) -> None:
    """Print it on the standard output, without colours where that is no terminal."""
    Console().print(picture)


def if_more(found: int, limit: int, which: str) -> list[Text]:
    """Lines that say that a list was cut at its limit; none if it was not."""
    if found <= limit:
        return []
    return [Text(), Text(f"These are the {which} {limit}; --limit shows more.")]


def flat(record: Any) -> dict[str, Any]:
    """A dataclass for JSON, with its offsets' own values in the place of ``offsets``."""
    values = asdict(record)
    return {**values.pop("offsets"), **values}


def print_json(values: object) -> None:
    """Print one JSON object on a line of its own."""
    typer.echo(json.dumps(values))


class Bar:
    """A bar of text that fills the width it is given: ``draw`` makes it so many cells wide."""

    def __init__(self, draw: Callable[[int], Text]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._draw(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(NARROWEST_BAR, options.max_width)


def duration_bar(duration_ms: int, interval_ms: int, longest_ms: int) -> Bar:
    """The duration of a batch, with a mark where its interval ends; full at ``longest_ms``."""

    def draw(width: int) -> Text:
        filled = _cells(duration_ms, longest_ms, width)
        mark = min(_cells(interval_ms, longest_ms, width), width - 1)
        within, beyond = min(filled, mark), max(filled - mark - 1, 0)
        text = Text("█" * within, style="cyan", no_wrap=True, end="")
        text.append(" " * (mark - within))
        text.append("┃" if filled > mark else "│", style="bold")
        return text.append("█" * beyond, style="yellow")

    return Bar(draw)


def lag_bar(lag: int, admitted: int, longest: int) -> Bar:
    """A lag, of which ``admitted`` is solid, and the rest light; ``longest`` is the full width."""

    def draw(width: int) -> Text:
        whole = _cells(lag, longest, width)
        solid = min(_cells(admitted, longest, width), whole)
        text = Text("█" * solid, style="cyan", no_wrap=True, end="")
        return text.append("░" * (whole - solid), style="cyan")

    return Bar(draw)


def sparkline(values: Iterable[int], highest: int) -> str:
    """One character for each value, from the lowest bar for 0 to the full height for ``highest``.

    >>> sparkline([0, 500, 1000, 4000], highest=1000)
    '▁▅██'
    """
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[min(round(value / max(highest, 1) * top), top)] for value in values)


def _cells(value: int, longest: int, width: int) -> int:
    """Return the number of cells that a value fills; above 0, at least one."""
    if value <= 0:
        return 0
    return min(max(round(value / max(longest, 1) * width), 1), width)


REFRESH_S: Final = 1.0

Watch = Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")]


def show_or_watch(draw: Callable[[int | None], RenderableType | None], *, watch: bool) -> None:
    """Print what ``draw`` returns, once or again and again; on a terminal in the same place.

    It is given the terminal's height (lines) where the picture has to fit, and returns None if it
    has printed by itself, as JSON.
    """
    console = Console()
    if watch and console.is_terminal:
        drawn = draw(console.height)
        if drawn is not None:
            _live(console, drawn, draw)
        time.sleep(REFRESH_S)
    while True:
        drawn = draw(None)
        if drawn is not None:
            console.print(drawn)
        if not watch:
            return
        time.sleep(REFRESH_S)


def _live(
    console: Console, drawn: RenderableType, draw: Callable[[int | None], RenderableType | None]
) -> None:
    with Live(drawn, console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(draw(console.height) or "", refresh=True)
            time.sleep(REFRESH_S)
