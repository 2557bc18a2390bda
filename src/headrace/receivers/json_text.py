"""JSON as it came, byte for byte: whether it is JSON, and where its elements begin and end."""

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

MAX_DIGITS: Final = 4300
"""Of an integer; Python, which may read it later, has the same limit."""

WORTH_ARROW_BYTES: Final = 16 * 1024
"""For less data, calling Arrow takes longer than checking each line."""

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_LONG_INTEGER: Final = re.compile(rb"(?<![0-9])[0-9]{%d}" % (MAX_DIGITS + 1))
_ARROW_OPTIONS: Final = arrow_json.ParseOptions(
    explicit_schema=pa.schema([]), unexpected_field_behavior="ignore"
)
_NOT_IN_JSON: Final = (b"\0", b"NaN", b"Inf")
"""What Arrow accepts although it is not JSON. Within a string it does no harm: the lines are then
checked one by one."""


class MalformedError(ValueError):
    """Data is not JSON in UTF-8, or has too long an integer; the text says where.

    Attributes:
        place: How many lines before it are well-formed.
    """

    def __init__(self, text: str, place: int = 0) -> None:
        super().__init__(text)
        self.place = place


class _LongError(ValueError):
    """An integer has more digits than are allowed."""


def _integer(text: str) -> int:
    """Check the length of an integer; its value is not used."""
    digits = len(text.removeprefix("-"))
    if digits > MAX_DIGITS:
        raise _LongError(
            f"has an integer of {digits} digits, and {MAX_DIGITS} are allowed; send it as a string"
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
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"JSON must be in UTF-8: {error}.") from error
    try:
        found = list(_elements(text)) if _past(text, 0, "[") else [_whole(text)]
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"The body {_wrong(error)}.") from error
    return [value.encode() for value in found]


def check_lines(data: bytes, first: int = 1) -> None:
    r"""Check that every line, ended by ``\n``, is one JSON value; the last may lack its end.

    Where each is an object, the usual case, that takes half a microsecond for 200 bytes, and other
    threads run meanwhile; otherwise it takes two, and they wait. ``first`` is the number of the
    first line, for the error.

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


def are_objects(data: bytes) -> bool:
    r"""Whether Arrow's parser, which makes no Python objects, knows each line to be a JSON object.

    If not, the lines may be JSON all the same. Each is ended by ``\n``; the last may lack its end.
    """
    if any(each in data for each in _NOT_IN_JSON if each[:1] in data):
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    text = np.frombuffer(data if data.endswith(b"\n") else data + b"\n", np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    starts = np.concatenate(([0], ends[:-1] + 1))
    # Where each line begins and ends like this no object goes on in the next line, for between two
    # braces a comma would be missing; so when there are as many objects as lines, each has one.
    if not (np.all(text[starts] == ord("{")) and np.all(text[ends - 1] == ord("}"))):
        return False
    if np.max(ends - starts) > MAX_DIGITS and _LONG_INTEGER.search(data):  # Arrow allows those
        return False
    try:
        found = arrow_json.read_json(pa.BufferReader(data), parse_options=_ARROW_OPTIONS)
    except pa.ArrowInvalid:
        return False
    return int(found.num_rows) == len(ends)


def _check_line(line: bytes, place: int, number: int) -> None:
    """Check a line again that is not JSON without space before it, and say what is wrong."""
    try:
        _whole(line.decode())
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"Line {number} {_wrong(error)}.", place) from error


def _wrong(error: Exception) -> str:
    return str(error) if isinstance(error, _LongError) else f"is not JSON: {error}"


def _whole(text: str) -> str:
    """The text without the space around it, if there is one value and nothing else."""
    start = _past_space(text, 0)
    end = _DECODE(text, start)[1]
    _end(text, end, "value")
    return text[start:end]


def _elements(text: str) -> Iterator[str]:
    at = _past(text, 0, "[")
    if end := _past(text, at, "]"):
        _end(text, end, "array")
        return
    while True:
        start = _past_space(text, at)
        end = _DECODE(text, start)[1]
        yield text[start:end]
        if at := _past(text, end, ","):
            continue
        if not (at := _past(text, end, "]")):
            place = _past_space(text, end)
            raise ValueError(f"an array goes on without ',' or ']' at character {place}")
        _end(text, at, "array")
        return


def _end(text: str, at: int, what: str) -> None:
    if _past_space(text, at) != len(text):
        raise ValueError(f"something follows the {what} at character {at}")


def _past_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _past(text: str, at: int, sign: str) -> int:
    """The place after this sign, if it comes next; otherwise 0."""
    at = _past_space(text, at)
    return at + 1 if text.startswith(sign, at) else 0
