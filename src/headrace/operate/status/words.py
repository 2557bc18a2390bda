"""Formats numbers, times and errors as text, the same on the terminal and in the dashboard."""

import re
from datetime import datetime
from typing import Final

from headrace.gate import LAST_MS, BatchRecord, ErrorReport

UNKNOWN: Final = "—"
"""Text for an unknown value."""

SHORT: Final = 8
"""Number of digits of a batch key in a table: enough to tell the batches of most ledgers apart."""

_DAY_MS: Final = 86_400_000


def count(number: float | None) -> str:
    """Format a number of records, or of records per second, without decimals.

    >>> count(12345.6), count(None)
    ('12,346', '—')
    """
    return UNKNOWN if number is None else f"{number:,.0f}"


def signed(number: float | None) -> str:
    """Format a change of a number with its sign, without decimals.

    >>> signed(120.0), signed(-31.2), signed(-0.3)
    ('+120', '-31', '0')
    """
    if number is None:
        return UNKNOWN
    return f"{number:+,.0f}" if round(number) else "0"


def plural(number: int, noun: str) -> str:
    """Format a number with its noun in singular or plural.

    >>> plural(1, "record"), plural(2_000, "record"), plural(3, "batch")
    ('1 record', '2,000 records', '3 batches')
    """
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count(number)} {noun}{'' if number == 1 else ending}"


def size(number: int | None) -> str:
    """Format a number of bytes with a unit from B to GB.

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
    """Format a number of bytes in MiB, without the unit."""
    return f"{number / 2**20:,.1f}"


def duration(ms: float | None) -> str:
    """Format a time span (ms) in its two largest units.

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


def drained_in(drain_s: float | None) -> str:
    """Format the time until no record waits, in whole seconds: an estimate has no tenths."""
    if drain_s is None:
        return UNKNOWN
    return duration(round(drain_s) * 1000) if drain_s >= 60 else f"{drain_s:.0f} s"


def fine_duration(ms: float) -> str:
    """Format a time span (ms) that may be far below a second.

    >>> [fine_duration(ms) for ms in (0.0042, 0.81, 4.54, 19.5, 980, 12_300)]
    ['4.2 µs', '810 µs', '4.5 ms', '20 ms', '980 ms', '12.3 s']
    """
    if ms >= 9_995:
        return duration(ms)
    value, unit = (ms * 1000, "µs") if ms < 0.9995 else (ms, "ms")
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:,.0f} {unit}"


def short_time(ms: int | None) -> str:
    """Format a time (ms since the epoch) in this machine's time zone, without year, for a table."""
    return UNKNOWN if ms is None else f"{_local(ms):%m-%d %H:%M:%S}"


def full_time(ms: int | None, now_ms: int) -> str:
    """Format a time (ms since the epoch) with its time zone and its distance from ``now_ms``."""
    if ms is None:
        return UNKNOWN
    away = f"{duration(now_ms - ms)} ago" if ms <= now_ms else f"in {duration(ms - now_ms)}"
    return f"{_local(ms).isoformat(' ', 'milliseconds')} ({away})"


def _local(ms: int) -> datetime:
    return datetime.fromtimestamp(min(ms, LAST_MS - _DAY_MS) / 1_000).astimezone()


def printable(text: str) -> str:
    """Replace each character that is not printable, line ends included, by a space."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def planned_or_counted(batch: BatchRecord) -> int:
    """Return a batch's number of records; until these are counted, its number of offsets."""
    return batch.planned_records if batch.records is None else batch.records


def status_word(batch: BatchRecord) -> str:
    """Return ``interrupted`` for a batch whose query was stopped, else the batch's status."""
    return "interrupted" if batch.interrupted else batch.status


def spoken(status: str) -> str:
    """Return a status as text for people, such as ``running`` for ``in_progress``."""
    return status.replace("in_progress", "running")


def reason_first(line: str) -> str:
    """Move the class of an error to the end of its line, without the class's module.

    >>> reason_first("psycopg.errors.DiskFull: no space left"), reason_first("no such topic")
    ('no space left (DiskFull)', 'no such topic')
    """
    error_class, _, reason = line.partition(": ")
    if not reason or not re.fullmatch(r"[\w.$]+", error_class):
        return line
    return f"{reason.rstrip('.')} ({error_class.rpartition('.')[2]})"


def short_error(error: ErrorReport | None) -> str:
    """Format an error in one line, with its class at the end; empty without an error."""
    return "" if error is None else reason_first(error.line)
