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
    """Return a text as one printable line, cut with an ellipsis if too long."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def batch_number(number: int | None) -> str:
    """Format a batch's number in Spark; empty before the first run."""
    return "" if number is None else f"#{number}"


def fitting(facts: Iterable[str], width: int) -> str:
    """Join the facts that fit into a line, none cut; the first one always stays."""
    shown = ""
    for fact in map(printable, facts):
        longer = f"{shown} · {fact}" if shown else fact
        if not shown or cell_len(longer) <= width:
            shown = longer
    return shown


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts on one line, none cut; the first is wrapped if too long."""

    facts: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(fitting(self.facts, options.max_width), no_wrap=False)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


@dataclass(frozen=True, slots=True)
class Shortened:
    """A text that is cut in its middle if too long, because its end may matter.

    Attributes:
        lines: Largest number of lines.
    """

    text: str
    style: str = ""
    lines: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Lines break between words, so a line holds fewer characters than its width.
        most = options.max_width if self.lines == 1 else options.max_width * self.lines * 9 // 10
        text = middle_cut(printable(self.text), most)
        yield Text(text, style=self.style, no_wrap=self.lines == 1, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(len(self.text), options.max_width))


def middle_cut(text: str, most: int) -> str:
    """Cut a text in its middle to ``most`` characters. Commands in backquotes are never cut.

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
    """Return a table without rules, if ``wide`` as wide as the terminal.

    A column is a header and a function that returns a row's cell; None is left out. ``>`` before
    the header aligns the column to the right, and ``*`` gives the column the remaining width.
    ``|16`` after the header limits the cells to 16 characters.
    """
    made = Table(expand=wide, box=None, pad_edge=False, header_style="dim")
    present = [column for column in columns if column is not None]
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
    """Return a table without headers; each column is as wide as its cells.

    ``columns`` has a letter for each column of one line: ``l`` for left, ``r`` for right, ``*`` for
    the remaining width. Default: two columns that are wrapped. Rows may have different numbers of
    cells.
    """
    made = Table.grid(expand=bool(columns), padding=(0, 2, 0, 0))
    for letter in columns:
        justify = "right" if letter == "r" else "left"
        made.add_column(no_wrap=True, justify=justify, ratio=1 if letter == "*" else None)  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*row)
    return made


class TextLines(logging.Formatter):
    """Formatter with the local time, the level above INFO, and the message on one line."""

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
    """Write log records to a stream during the context, by default as `TextLines`.

    ``of`` names the logger. Default: all loggers, with warnings of other packages.
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
    """Print on the standard output, without colours if it is not a terminal."""
    Console().print(picture)


def if_more(found: int, limit: int, which: str) -> list[Text]:
    """Return lines about a list that was cut at its limit; none for a whole list."""
    if found <= limit:
        return []
    return [Text(), Text(f"These are the {which} {limit}; --limit shows more.")]


def flat(record: Any) -> dict[str, Any]:
    """Return a dataclass for JSON, with the values of ``offsets`` in place of ``offsets``."""
    values = asdict(record)
    return {**values.pop("offsets"), **values}


def print_json(values: object) -> None:
    """Print one JSON object on a line of its own."""
    typer.echo(json.dumps(values))


class Bar:
    """A bar of text that fills its width: ``draw`` takes the width (cells)."""

    def __init__(self, draw: Callable[[int], Text]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._draw(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(NARROWEST_BAR, options.max_width)


def duration_bar(duration_ms: int, interval_ms: int, longest_ms: int) -> Bar:
    """Return a bar for a batch's duration with a mark for its interval; full at ``longest_ms``."""

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
    """Return a bar for a lag, solid for ``admitted`` records, else light; full at ``longest``."""

    def draw(width: int) -> Text:
        whole = _cells(lag, longest, width)
        solid = min(_cells(admitted, longest, width), whole)
        text = Text("█" * solid, style="cyan", no_wrap=True, end="")
        return text.append("░" * (whole - solid), style="cyan")

    return Bar(draw)


def sparkline(values: Iterable[int], highest: int) -> str:
    """Draw each value as a character: the lowest bar for 0, the full height from ``highest`` on.

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
    """Print the result of ``draw`` once, or every second; on a terminal in the same place.

    ``draw`` takes the terminal's height (lines) if the picture has to fit, else None. A result of
    None is not printed: ``draw`` has printed JSON.
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
