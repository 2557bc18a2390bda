"""Parsing and checks of option values. Spark passes options as text.

Each error names the option, its value and the allowed values.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from headrace.core.ranges import OffsetRange, TopicPartition, flat, ranges_of_lists
from headrace.errors import OptionError

_NAME: Final = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,100}", re.ASCII)


def option_text(value: object) -> str:
    """Return the text of a value as Spark's ``option()`` method writes it.

    >>> option_text(True), option_text(5)
    ('true', '5')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def require_name(what: str, value: object) -> None:
    """Raise `OptionError` if a value is not a valid name of a flow or a stage.

    A name has 1 to 100 letters, digits, ``.``, ``_`` or ``-``. It must not consist of points alone,
    because ``.`` and ``..`` are folders. ``what`` is the subject of the error message.
    """
    if not (isinstance(value, str) and _NAME.fullmatch(value)):
        raise OptionError(
            f"{what} is {value!r}; it must be 1 to 100 letters, digits, '.', '_' or '-', and"
            " not '.' alone."
        )


def require_whole(
    what: str, value: object, least: int, most: int | None = None, *, unit: str = ""
) -> None:
    """Raise `OptionError` if a value is not an integer from ``least`` to ``most``.

    Args:
        what: The subject of the error message, such as the option's name.
        value: The value to check.
        least: The smallest allowed value.
        most: The largest allowed value. Default: no limit.
        unit: The unit of the value in the error message.
    """
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value < least
        or (most is not None and value > most)
    ):
        allowed = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise OptionError(f"{what} is {_shown(value, unit)}; it must be a whole number {allowed}.")


def require_number(
    what: str,
    value: object,
    unit: str = "",
    *,
    least: float = 0,
    most: float = math.inf,
    above: bool = False,
) -> None:
    """Raise `OptionError` if a value is not a finite number from ``least`` to ``most``.

    Args:
        what: The subject of the error message, such as the option's name.
        value: The value to check.
        unit: The unit of the value in the error message.
        least: The smallest allowed value. Default: 0.
        most: The largest allowed value. Default: no limit.
        above: Whether the value must be greater than ``least``.
    """
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not (value > least if above else value >= least)
        or not value <= most
        or value == math.inf
    ):
        to = f" and at most {most:g}" if math.isfinite(most) else ""
        allowed = f"above {least:g}{to}" if above else f"of {least:g} or more{to}"
        raise OptionError(f"{what} is {_shown(value, unit)}; it must be a finite number {allowed}.")


def _shown(value: object, unit: str) -> str:
    return f"{value!r} {unit}" if unit else repr(value)


_Word = TypeVar("_Word", bound=StrEnum)
_Value = TypeVar("_Value")

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_UNIT_WORDS: Final = {
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
}
_PART: Final = re.compile(r"(\d+)\s*([a-z]+)\s*")
_DURATION: Final = re.compile(r"(?:interval\s+)?((?:\d{1,30}\s*[a-z]+\s*)+)")
_BARE: Final = re.compile(r"[0-9]{1,15}")

_GATE_NAME: Final = re.compile(r"(?!-|\.+$)[\w.\-]{1,200}")

LONGEST_INTERVAL_MS: Final = 365 * _UNITS_MS["d"]
"""Longest allowed interval or duration of a gate (ms): 365 days, which Spark's triggers accept."""


def gate_name(option: str, name: object) -> str:
    """Check a gate's name, and return it. The gate's name is also the name of its Spark query.

    Raises:
        OptionError: The name is not valid. ``option`` names the option in the message.
    """
    if not isinstance(name, str) or not _GATE_NAME.fullmatch(name):
        raise OptionError(
            f"{option} is {name!r}; it must have 1 to 200 letters, digits, '_', '.' and '-',"
            " not begin with '-', and not be '.' alone, because commands and web addresses"
            " contain it."
        )
    return name


def interval_ms(option: str, interval: object) -> int:
    """Parse an interval. Return its length (ms).

    Args:
        option: The option's name, for error messages.
        interval: A `timedelta`, or a text with a number and a unit, as in `duration_ms`.

    Raises:
        OptionError: The interval has another type or no unit, is not above 0, or is above
            `LONGEST_INTERVAL_MS`.
    """
    if isinstance(interval, timedelta):
        result_ms = round(interval / timedelta(milliseconds=1))
    elif isinstance(interval, str) and not _BARE.fullmatch(interval.strip()):
        result_ms = duration_ms(option, interval)
    else:
        raise OptionError(
            f"{option} is {interval!r}; it must be a duration with its unit such as '500 ms' or"
            " '1 second', or a timedelta."
        )
    if not 0 < result_ms <= LONGEST_INTERVAL_MS:
        raise OptionError(f"{option} is {interval}; it must be above 0, and at most 365 days.")
    return result_ms


def duration_ms(option: str, text: str) -> int:
    """Parse a duration in the syntax of Spark's triggers and settings. Return its length (ms).

    A number without a unit is in milliseconds.

    Raises:
        OptionError: The text is not a duration. ``option`` names the option in the message.

    >>> duration_ms("maxTriggerDelay", "15m"), duration_ms("interval", "1 minute 30 seconds")
    (900000, 90000)
    """
    lowered = text.strip().lower()
    if _BARE.fullmatch(lowered):
        return int(lowered)
    written = _DURATION.fullmatch(lowered)
    parts = _PART.findall(written[1]) if written else []
    if not parts or any(unit not in _UNIT_WORDS for _, unit in parts):
        raise OptionError(
            f"{option} is {text!r}; it must be a duration such as '500 ms', '1 second' or '15m'."
        )
    return sum(int(number) * _UNITS_MS[_UNIT_WORDS[unit]] for number, unit in parts)


def age_ms(option: str, text: str) -> int:
    """Parse a duration that a user has passed to a command. Return its length (ms).

    Raises:
        OptionError: The text is not a duration, or has no unit.

    >>> age_ms("--older-than", "7 days")
    604800000
    """
    if text.strip().isdecimal():
        raise OptionError(
            f"{option} is {text!r}; it must be a time with its unit, such as '30 days'."
        )
    return duration_ms(option, text)


def boolean(option: str, text: str) -> bool:
    """Parse ``true`` or ``false``, in upper or lower case; `OptionError` for any other text."""
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise OptionError(f"{option} is {text!r}; it must be true or false.")


def word(option: str, text: str, words: type[_Word]) -> _Word:
    """Parse one of these words, in upper or lower case; `OptionError` for any other text."""
    for each in words:
        if each.upper() == text.strip().upper():
            return each
    raise OptionError(f"The option {option} is {text!r}; it must be one of {', '.join(words)}.")


def whole_number(option: str, text: str, *, at_least: int) -> int:
    """Parse an integer of ``at_least`` or more; `OptionError` for any other text."""
    number = _converted(int, text)
    if number is None or number < at_least:
        raise OptionError(f"{option} is {text!r}; it must be a whole number of {at_least} or more.")
    return number


def number(option: str, text: str, *, above_zero: bool) -> float:
    """Parse a finite number of 0 or more; with ``above_zero``, a number above 0.

    Raises:
        OptionError: The text is not such a number. ``option`` names the option in the message.
    """
    value = _converted(float, text)
    if value is None or not math.isfinite(value) or value < 0 or (above_zero and value == 0):
        allowed = "above 0" if above_zero else "of 0 or more"
        raise OptionError(f"{option} is {text!r}; it must be a number {allowed}.")
    return value


def _converted(kind: Callable[[str], _Value], text: str) -> _Value | None:
    try:
        return kind(text.strip())
    except ValueError:
        return None


def offsets_by_partition(option: str, text: str) -> dict[TopicPartition, int]:
    """Parse JSON with one integer for each partition, such as the value of ``startingOffsets``.

    The form is ``{"orders": {"0": 23, "1": -1}}``; `OptionError` for any other form.
    """
    try:
        return flat(_object(text))
    except (AttributeError, TypeError, ValueError) as error:
        raise OptionError(
            f"{option} is {text!r}; it must be JSON with a whole number for each partition, such as"
            ' {"orders": {"0": 23, "1": 345}}.'
        ) from error


def text_by_topic(option: str, text: str) -> dict[str, str]:
    """Parse JSON with one string for each topic, such as the ids of topics.

    The form is ``{"orders": "kA2bX0zTQ5q1sV3nY7wZ8g"}``; `OptionError` for any other form.
    """
    try:
        texts = _object(text)
    except (TypeError, ValueError):
        texts = None
    if texts is None or not all(isinstance(value, str) for value in texts.values()):
        raise OptionError(
            f"{option} is {text!r}; it must be JSON with a text for each topic, such as"
            ' {"orders": "kA2bX0zTQ5q1sV3nY7wZ8g"}.'
        )
    return texts


def disjoint_ranges(option: str, text: str) -> list[OffsetRange]:
    """Parse JSON with offset ranges: ``[["orders", 0, 10, 20], ["orders", 0, 25, 30]]``.

    Each range has a topic, a partition, a start (included) and an end (excluded).

    Raises:
        OptionError: The text has another form, a range is empty, or two ranges share an offset.
    """
    try:
        ranges = ranges_of_lists(json.loads(text))
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"{option} is {text!r} ({error}); it must be JSON with a topic, a partition, a first"
            ' offset and an end for each range, such as [["orders", 0, 10, 20]], and no offset'
            " twice."
        ) from error
    return ranges


def partitions_by_topic(option: str, text: str) -> list[TopicPartition]:
    """Parse JSON with the partitions of each topic: ``{"orders": [0, 1], "returns": [3]}``.

    Raises:
        OptionError: The text has another form, or contains no partition.
    """
    try:
        named_partitions = [
            TopicPartition(topic, _partition(partition))
            for topic, partitions in _object(text).items()
            for partition in partitions
        ]
    except (TypeError, ValueError) as error:
        raise OptionError(_PARTITIONS_WANTED.format(option=option, text=text)) from error
    if not named_partitions:
        raise OptionError(_PARTITIONS_WANTED.format(option=option, text=text))
    return named_partitions


_PARTITIONS_WANTED: Final = (
    '{option} is {text!r}; it must be JSON with the partitions of each topic, such as {{"orders":'
    " [0, 1]}}."
)


def number_by_partition(
    option: str, text: str, parse: Callable[[str, str], _Value], default: _Value
) -> tuple[_Value, Mapping[TopicPartition, _Value]]:
    """Parse one number for all partitions, or JSON with numbers for some partitions and a default.

    ::

        100
        {"default": 100, "orders": {"0": 500}}

    Args:
        option: The option's name, for error messages.
        text: The value of the option.
        parse: ``parse(option, text)`` parses a single number.
        default: The default number if the JSON has none.

    Returns:
        The default number, and the numbers of single partitions.

    Raises:
        OptionError: The text has another form.
    """
    if not text.lstrip().startswith("{"):
        return parse(option, text), {}
    try:
        entries = _object(text)
        rest = entries.pop("default", None) if not _is_topic(entries.get("default")) else None
        numbers = {
            TopicPartition(topic, int(partition)): parse(option, str(value))
            for topic, partitions in entries.items()
            for partition, value in partitions.items()
        }
    except OptionError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise OptionError(
            f"{option} is {text!r}; it must be a number, or JSON with a number for some partitions"
            ' and a default for the rest, such as {"default": 100, "orders": {"0": 500}}.'
        ) from error
    return default if rest is None else parse(option, str(rest)), numbers


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _is_topic(value: object) -> bool:
    return isinstance(value, dict)


def _partition(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError("not a partition's number")
    return value
