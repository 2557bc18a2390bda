"""Moments as people write and read them, in the time zone of this machine."""

from datetime import datetime

from headrace.cli.words import UNKNOWN, duration
from headrace.errors import OptionError
from headrace.source.values import duration_ms


def moment_ms(option: str, text: str, now_ms: int) -> int:
    """A moment (ms since the epoch) from an ISO date or time, or from how long ago it is.

    >>> moment_ms("--since", "2 hours ago", now_ms=7_200_001)
    1
    >>> moment_ms("--since", "2024-11-21T14:00:00Z", now_ms=0)
    1732197600000

    Raises:
        OptionError: It is neither.
    """
    written = text.strip()
    try:
        return max(_parsed_ms(option, written, now_ms), 0)
    except (ValueError, OverflowError) as error:
        raise OptionError(
            f"{option} is {text!r}; it must be a time such as '2024-11-21 14:00' or "
            "'2024-11-21T13:00:00Z', or how long ago it was, such as '2h' or '30 minutes ago'."
        ) from error


def window_ms(since: str | None, until: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """The moments (ms since the epoch) of ``--since`` and ``--until``, of those that are given.

    Raises:
        OptionError: As `moment_ms`.
    """
    return (
        None if since is None else moment_ms("--since", since, now_ms),
        None if until is None else moment_ms("--until", until, now_ms),
    )


def age_ms(option: str, text: str) -> int:
    """How old something is (ms), from a time with its unit.

    >>> age_ms("--older-than", "7 days")
    604800000

    Raises:
        OptionError: It is none. A number alone would be milliseconds, which nobody means here.
    """
    if text.strip().isdecimal():
        raise OptionError(
            f"{option} is {text!r}; it must be a time with its unit, such as '30 days'."
        )
    return duration_ms(option, text)


def _parsed_ms(option: str, written: str, now_ms: int) -> int:
    if written.isdecimal():
        raise ValueError("a number without a unit")
    try:
        return round(datetime.fromisoformat(written).timestamp() * 1_000)
    except ValueError:
        return now_ms - duration_ms(option, written.lower().removesuffix("ago"))


def short_time(ms: int | None) -> str:
    """A moment for a table: without the year."""
    return UNKNOWN if ms is None else f"{_local(ms):%m-%d %H:%M:%S}"


def full_time(ms: int | None, now_ms: int) -> str:
    """A moment with its time zone, and how long ago it was."""
    if ms is None:
        return UNKNOWN
    away = f"{duration(now_ms - ms)} ago" if ms <= now_ms else f"in {duration(ms - now_ms)}"
    return f"{_local(ms).isoformat(' ', 'milliseconds')} ({away})"


def _local(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000).astimezone()
