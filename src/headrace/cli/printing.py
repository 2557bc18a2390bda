"""How things are printed: numbers, times, lines, tables, bars, pictures and JSON."""

import io
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headrace.errors import OptionError
from headrace.ledger import BatchRecord, ErrorReport

UNKNOWN: Final = "—"
"""What stands where a value is not known yet."""

PICTURE_WIDTH: Final = 100
NARROWEST_BAR: Final = 8
Row = TypeVar("Row")
_LEVELS: Final = "▁▂▃▄▅▆▇█"

# Rich has the viewer fetch fonts from elsewhere.
_FONTS: Final = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def count(number: float | None) -> str:
    """A number of records, or of records per second.

    >>> count(12345.6), count(None)
    ('12,346', '—')
    """
    return UNKNOWN if number is None else f"{number:,.0f}"


def signed(number: float | None) -> str:
    """A change, always with its sign.

    >>> signed(120.0), signed(-31.2), signed(-0.3)
    ('+120', '-31', '0')
    """
    if number is None:
        return UNKNOWN
    return f"{number:+,.0f}" if round(number) else "0"


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "record"), plural(2_000, "record"), plural(3, "batch")
    ('1 record', '2,000 records', '3 batches')
    """
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count(number)} {noun}{'' if number == 1 else ending}"


def size(number: int | None) -> str:
    """A number of bytes.

    >>> size(900), size(1_250_000), size(None)
    ('900 B', '1.2 MB', '—')
    """
    if number is None:
        return UNKNOWN
    value = float(number)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def mebibytes(number: int) -> str:
    """A number of bytes, in MiB without the unit."""
    return f"{number / 2**20:,.1f}"


def duration(ms: float | None) -> str:
    """A time span, with two figures that matter.

    >>> [duration(ms) for ms in (4, 980, 12_300, 125_000, 7_500_000, 200_000_000)]
    ['0.00 s', '0.98 s', '12.3 s', '2 min 5 s', '2 h 5 min', '2 d 7 h']
    """
    if ms is None:
        return UNKNOWN
    if ms < 59_950:
        return f"{ms / 1000:.2f} s" if ms < 9_995 else f"{ms / 1000:.1f} s"
    seconds = round(ms / 1000)
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3_600} h {seconds % 3_600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3_600} h"


def short_time(ms: int | None) -> str:
    """A moment for a table, in this machine's time zone: without the year."""
    return UNKNOWN if ms is None else f"{_local(ms):%m-%d %H:%M:%S}"


def full_time(ms: int | None, now_ms: int) -> str:
    """A moment with its time zone, and how long ago it was."""
    if ms is None:
        return UNKNOWN
    away = f"{duration(now_ms - ms)} ago" if ms <= now_ms else f"in {duration(ms - now_ms)}"
    return f"{_local(ms).isoformat(' ', 'milliseconds')} ({away})"


def _local(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000).astimezone()


def printable(text: str) -> str:
    """The text with a space for each character that a terminal would obey, line ends too."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def line(text: str, style: str = "") -> Text:
    """One printable line, cut where it is too long."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def planned_or_counted(batch: BatchRecord) -> int:
    """Its records, or the offsets in it while they have not been counted."""
    return batch.planned_records if batch.records is None else batch.records


def status_word(batch: BatchRecord) -> str:
    """Where a batch stands: ``interrupted`` if its query was stopped, else the ledger's word."""
    return "interrupted" if batch.interrupted else batch.status


def error_line(error: ErrorReport) -> str:
    """An error in short: its class, and the first line of its message."""
    first_line = error.message.strip().partition("\n")[0]
    return f"{error.error_class}: {first_line}" if first_line else error.error_class


def short_error(error: ErrorReport | None) -> str:
    """An error in one line, its class without the module; empty where there is none."""
    if error is None:
        return ""
    return error_line(replace(error, error_class=error.error_class.rpartition(".")[2]))


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


def grid(
    rows: Iterable[tuple[RenderableType, ...]], columns: str = "", *, wide: bool = True
) -> Table:
    """Rows without headers; each column is as wide as it needs to be.

    Args:
        rows: Their cells; a row may have fewer than others.
        columns: A letter for each column of one line: ``l`` and ``r`` for left and right, ``*`` for
            the rest of the width. Without letters, two columns that are wrapped.
        wide: Whether it is as wide as the terminal.
    """
    made = Table.grid(expand=wide and bool(columns), padding=(0, 2, 0, 0))
    for letter in columns:
        justify = "right" if letter == "r" else "left"
        made.add_column(no_wrap=True, justify=justify, ratio=1 if letter == "*" else None)  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*row)
    return made


def show(picture: RenderableType) -> None:
    """Print it on the standard output, without colours where that is no terminal."""
    Console().print(picture)


def say_if_more(found: int, limit: int, which: str) -> None:
    """Say that a list was cut at its limit, if it was."""
    if found > limit:
        typer.echo(f"\nThese are the {which} {limit}; --limit shows more.")


def flat(record: Any) -> dict[str, Any]:
    """A dataclass for JSON, with its offsets' own values in the place of ``offsets``."""
    values = asdict(record)
    return {**values.pop("offsets"), **values}


def print_json(values: object) -> None:
    """Print one JSON object on a line of its own."""
    typer.echo(json.dumps(values))


def write_picture(
    picture: RenderableType, path: Path, title: str, width: int = PICTURE_WIDTH
) -> None:
    """Write what a terminal of ``width`` characters shows as an SVG file, which loads nothing."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(picture)
    write_svg(_FONTS.sub("", console.export_svg(title=title)), path)


def write_svg(svg: str, path: Path) -> None:
    """Write a picture."""
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"The picture {path} cannot be written: {error.strerror}; name another file."
        ) from error


class Bar:
    """A bar of text that fills the width it is given."""

    def draw(self, width: int) -> Text:
        """The bar, so many cells wide."""
        raise NotImplementedError

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.draw(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(NARROWEST_BAR, options.max_width)


@dataclass(frozen=True, slots=True)
class DurationBar(Bar):
    """The duration of a batch, with a mark where its interval ends; full at ``longest_ms``."""

    duration_ms: int
    interval_ms: int
    longest_ms: int

    def draw(self, width: int) -> Text:
        """Within the interval, then beyond it."""
        filled = _cells(self.duration_ms, self.longest_ms, width)
        mark = min(_cells(self.interval_ms, self.longest_ms, width), width - 1)
        within, beyond = min(filled, mark), max(filled - mark - 1, 0)
        text = Text("█" * within, style="cyan", no_wrap=True, end="")
        text.append(" " * (mark - within))
        text.append("┃" if filled > mark else "│", style="bold")
        return text.append("█" * beyond, style="yellow")


@dataclass(frozen=True, slots=True)
class LagBar(Bar):
    """A lag, of which ``admitted`` is solid, and the rest light; ``longest`` is the full width."""

    lag: int
    admitted: int
    longest: int

    def draw(self, width: int) -> Text:
        """What is admitted, then what waits."""
        whole = _cells(self.lag, self.longest, width)
        solid = min(_cells(self.admitted, self.longest, width), whole)
        text = Text("█" * solid, style="cyan", no_wrap=True, end="")
        return text.append("░" * (whole - solid), style="cyan")


def sparkline(values: Iterable[int], highest: int) -> str:
    """One character for each value, from the lowest bar for 0 to the full height for ``highest``.

    >>> sparkline([0, 500, 1000, 4000], highest=1000)
    '▁▅██'
    """
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[min(round(value / max(highest, 1) * top), top)] for value in values)


def _cells(value: int, longest: int, width: int) -> int:
    """How many cells a value fills; above 0, at least one."""
    if value <= 0:
        return 0
    return min(max(round(value / max(longest, 1) * width), 1), width)
