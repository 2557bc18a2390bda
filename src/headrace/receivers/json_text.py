"""JSON as it came, byte for byte: whether it is JSON, and where its parts begin and end."""

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

from headrace.receivers.json_objects import WORTH_ARROW_BYTES, are_objects

_SPACE: Final = re.compile(r"[ \t\r\n]*")


class MalformedError(ValueError):
    """What should be JSON in UTF-8 is not, or has too long an integer; the text says where.

    Attributes:
        place: How many lines before it are.
    """

    def __init__(self, text: str, place: int = 0) -> None:
        super().__init__(text)
        self.place = place


MOST_DIGITS: Final = 4300
"""Of an integer; what reads it later may have the same bound, as Python has."""


class _LongError(ValueError):
    """An integer has more digits than are taken."""


def _integer(text: str) -> int:
    """Nothing of an integer but that it is not too long: its value is not asked for."""
    digits = len(text.removeprefix("-"))
    if digits > MOST_DIGITS:
        raise _LongError(
            f"has an integer of {digits} digits, and {MOST_DIGITS} are allowed; send it as a string"
        )
    return 0


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a value of JSON")


_DECODE: Final = json.JSONDecoder(parse_int=_integer, parse_constant=_refuse).raw_decode


def values_of(body: bytes) -> list[bytes]:
    """The elements of an array, or the one value that is no array, each as it was written.

    Raises:
        MalformedError: It is not one JSON value, or has an integer of more than 4300 digits.
    """
    text = _text(body)
    try:
        found = list(_elements(text)) if _past_space(text, 0, "[") else [_whole(text)]
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"The body {_wrong(error)}.") from error
    return [value.encode() for value in found]


def check_lines(data: bytes, first: int = 1) -> None:
    r"""See that every line, ended by ``\n``, is one JSON value; the last may lack its end.

    Where each is an object, as they mostly are, that takes half a microsecond for 200 bytes, and
    other threads run meanwhile; otherwise it takes two, and they wait.

    Args:
        data: The lines.
        first: The number of the first line, for the error.

    Raises:
        MalformedError: A line is not, an empty one too; the text has its number.
    """
    if len(data) >= WORTH_ARROW_BYTES and are_objects(data):
        return
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for place, line in enumerate(lines):
        try:
            text = line.decode()
            if _DECODE(text)[1] != len(text):
                _whole(text)
        except (ValueError, RecursionError):
            _check_line(line, place, first + place)


def _check_line(line: bytes, place: int, number: int) -> None:
    """Look again at a line that is not JSON without space before it, and say what is wrong."""
    try:
        _whole(line.decode())
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"Line {number} {_wrong(error)}.", place) from error


def _wrong(error: Exception) -> str:
    return str(error) if isinstance(error, _LongError) else f"is not JSON: {error}"


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"JSON must be in UTF-8: {error}.") from error


def _whole(text: str) -> str:
    """The text without the space around it, if there is one value and nothing else."""
    start = _space(text, 0)
    end = _DECODE(text, start)[1]
    if _space(text, end) != len(text):
        raise ValueError(f"something follows the value at character {end}")
    return text[start:end]


def _elements(text: str) -> Iterator[str]:
    at = _past_space(text, 0, "[")
    if end := _past_space(text, at, "]"):
        _end(text, end)
        return
    while True:
        start = _space(text, at)
        end = _DECODE(text, start)[1]
        yield text[start:end]
        if at := _past_space(text, end, ","):
            continue
        if not (end := _past_space(text, end, "]")):
            raise ValueError(
                f"an array goes on without ',' or ']' at character {_space(text, end)}"
            )
        _end(text, end)
        return


def _end(text: str, at: int) -> None:
    if _space(text, at) != len(text):
        raise ValueError(f"something follows the array at character {at}")


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _past_space(text: str, at: int, sign: str) -> int:
    """The place after this sign, if it comes next; otherwise 0."""
    at = _space(text, at)
    return at + 1 if text.startswith(sign, at) else 0
