"""Numbers and times as people read them."""

from typing import Final

UNKNOWN: Final = "—"
"""What stands where a value is not known yet."""


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


def plural(number: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "record"), plural(2_000, "record"), plural(3, "batch")
    ('1 record', '2,000 records', '3 batches')
    """
    ending = "es" if noun.endswith("ch") else "s"
    return f"{count(number)} {noun}{'' if number == 1 else ending}"
