"""Checks of JSON text: validity, elements of an array, and message ids of lines.

The checks leave the bytes unchanged and build no Python objects from the values. The parser skips
the values, so their depth and size take no memory.
"""

import codecs
import re
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from threading import Lock
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.journal.receivers.id_window import MAX_ID_CHARACTERS, is_message_id

MAX_DIGITS: Final = 4300
"""Maximum number of digits in an integer. Python, which may read the value later, has the same
limit."""

COMMAS_PER_RECORD: Final = 8
"""An array with this many commas for each allowed record is refused before parsing. The number of
elements is known only after parsing, when each element already takes memory.
"""

_UNKNOWN: Final = Lock()
"""Lock for parsing an array that may have too many elements. Only one such array is parsed at a
time, because each element takes 70 bytes."""

_WINDOW_BYTES: Final = (MAX_DIGITS + 1) // 2
"""Size of the windows that are searched for digits (bytes): half the length of the shortest integer
that is too long. So an integer that is too long fills at least one window."""

_SPACE: Final = b" \t\r\n"
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|-?([0-9]++)(?:[.eE][0-9.eE+-]*+)?+', re.DOTALL)
_SEVERAL: Final = "is not JSON: trailing characters"
"""Beginning of the error text for a body that has more data after its first JSON value."""
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])


class MalformedError(ValueError):
    """Error for data that is not JSON in UTF-8, or that has an integer with too many digits.

    The message names the line or value.

    Attributes:
        place: Number of well-formed lines or values before the malformed line or value.
        ids: Message ids of the well-formed lines or values; empty if no ids were requested.
    """

    def __init__(self, text: str, place: int = 0, ids: list[str] | None = None) -> None:
        super().__init__(text)
        self.place = place
        self.ids = ids or []


class TooManyError(ValueError):
    """Error for a JSON array with too many elements or commas; the message has the limit."""


def values_of(body: bytes, max_values: int) -> Sequence[bytes]:
    """Return the elements of a JSON array, or any other JSON value as the only element.

    The elements are views of the body. If there is only one element, and it is shorter than half of
    the body, it is copied: a view would keep the whole body in memory, outside of all memory
    limits.

    Raises:
        MalformedError: The body is not one JSON value, or has an integer of over 4300 digits.
        TooManyError: The array has over ``max_values`` elements, or ``8 * max_values`` commas.
    """
    try:
        _check_text(body)
        if body.lstrip(_SPACE)[:1] != b"[":
            values = [_VALUE.decode(body)]
        else:
            values = _elements(body, max_values)
        _check_integers(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _LongError) as error:
        wrong = _wrong(error, body)
        if wrong.startswith(_SEVERAL):
            wrong = f"{wrong}; send several values in an array, or as application/x-ndjson"
        raise MalformedError(f"The body {wrong}.") from error
    if len(values) == 1 and len(values[0]) < len(body) // 2:
        return [values[0].copy()]
    return values


def _elements(body: bytes, max_values: int) -> list[msgspec.Raw]:
    commas = body.count(b",")
    if commas >= COMMAS_PER_RECORD * max_values:
        raise TooManyError(too_many_commas(max_values))
    with _UNKNOWN if commas >= max_values else nullcontext():
        elements = _ARRAY.decode(body)
        count = len(elements)
        if count > max_values:
            elements.clear()  # the error's traceback would keep the list in memory
            raise TooManyError(
                f"The array has {count} elements, but a request may have {max_values} records"
            )
    return elements


def too_many_commas(max_values: int) -> str:
    """Return the error text for a body that is refused before parsing, due to too many commas."""
    return (
        f"The body has {COMMAS_PER_RECORD * max_values} commas or more, too many for the"
        f" {max_values} records that a request may have"
    )


def check_lines(data: bytes, first: int = 1) -> None:
    r"""Check that each line is one JSON value. Lines end with ``\n``, optional for the last line.

    ``first`` is the number of the first line, for error messages. Checking a line of 200 bytes
    takes about 0.1 µs if all lines are objects, and otherwise about 0.3 µs.

    Raises:
        MalformedError: A line is empty or not JSON; the message has the line's number.
    """
    if _objects(data, _VALUE) is None:
        check_values(_lines(data), first, "Line")


def check_values(values: Sequence[bytes], first: int, what: str) -> None:
    """Check that each of the values is one JSON value.

    Error messages name a value by ``what`` and its number, counted from ``first``.

    Raises:
        MalformedError: A value is not JSON; the message has the value's number.
    """
    for place, value in enumerate(values):
        _checked(_VALUE, value, place, f"{what} {first + place}", [])


def ids_of_lines(data: bytes, field: str, first: int = 1) -> list[str]:
    """Return the message ids of lines. Each line must be a JSON object with its id in ``field``.

    ``first`` is the number of the first line, for error messages.

    Raises:
        MalformedError: A line is not a JSON object, or the field is missing, or its value is not
            a text of 1 to 200 characters or a whole number.
    """
    decoder = _id_decoder(field)
    whole = _objects(data, decoder)
    if whole is not None:
        ids = [_id_text(line) for line in whole]
        if all(map(is_message_id, ids)):
            return ids
    return ids_of_values(_lines(data), field, first, "Line")


def ids_of_values(values: Sequence[bytes], field: str, first: int, what: str) -> list[str]:
    """Return the message ids of values. Each must be a JSON object with its id in ``field``.

    Error messages name a value by ``what`` and its number, counted from ``first``.

    Raises:
        MalformedError: A value is not a JSON object, or the field is missing, or its value is not
            a text of 1 to 200 characters or a whole number.
    """
    decoder = _id_decoder(field)
    ids: list[str] = []
    for place, value in enumerate(values):
        name = f"{what} {first + place}"
        try:
            message_id = _id_text(_checked(decoder, value, place, name, ids))
        except msgspec.ValidationError:
            message_id = ""
        if not is_message_id(message_id):
            raise MalformedError(
                f"{name} has no message id: it must be a JSON object whose field"
                f" {field!r} is a text of 1 to {MAX_ID_CHARACTERS} characters, or a whole number"
                " that fits into 64 bits.",
                place,
                ids,
            )
        ids.append(message_id)
    return ids


@lru_cache(maxsize=8)
def _id_decoder(field: str) -> "msgspec.json.Decoder[Any]":
    made = msgspec.defstruct(
        "Line", [("id", str | int | None, None)], rename={"id": field}, module=__name__
    )
    return msgspec.json.Decoder(made)


def _objects(data: bytes, decoder: "msgspec.json.Decoder[Any]") -> list[Any] | None:
    r"""Decode all lines at once, if each line is certainly one JSON object; otherwise return None.

    If the result is None, the caller checks the lines one by one. If every line begins with ``{``
    and ends with ``}``, no object can continue in the next line, because a comma between the braces
    would be missing. So if there are as many objects as lines, each line is one object.
    """
    count = data.count(b"\n") + (not data.endswith(b"\n"))
    begun = data.count(b"\n{") + data.startswith(b"{")
    ended = data.count(b"}\n") + data.count(b"}\r\n") + data.endswith(b"}")
    if not begun == ended == count:
        return None
    try:
        _check_text(data)
        objects = decoder.decode_lines(data)
        _check_integers(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _LongError):
        return None
    return objects if len(objects) == count else None


def _id_text(line: Any) -> str:
    return "" if line.id is None else str(line.id)


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _checked(
    decoder: "msgspec.json.Decoder[Any]", line: bytes, place: int, name: str, ids: list[str]
) -> Any:
    try:
        _check_text(line)
        value = decoder.decode(line)
        _check_integers(line)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _LongError) as error:
        raise MalformedError(f"{name} {_wrong(error, line)}.", place, ids) from error
    return value


class _LongError(ValueError):
    """Error for an integer with more than `MAX_DIGITS` digits."""


def _check_text(data: bytes) -> None:
    """Raise UnicodeDecodeError if the data is not UTF-8; valid data is not copied."""
    if data.isascii():
        return
    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        data.decode()


def _check_integers(data: bytes) -> None:
    """Raise _LongError if well-formed JSON has an integer of more than `MAX_DIGITS` digits.

    Digits in strings, and in numbers with a fraction or an exponent, do not count.
    """
    windows = range(0, len(data) - _WINDOW_BYTES + 1, _WINDOW_BYTES)
    if not any(data[start : start + _WINDOW_BYTES].isdigit() for start in windows):
        return
    for token in _TOKEN.finditer(data):
        digits = len(token[1] or b"")
        if digits > MAX_DIGITS and token.end() == token.end(1):
            raise _LongError(
                f"has an integer of {digits} digits, but {MAX_DIGITS} are allowed; send it as a"
                " string"
            )


def _wrong(error: Exception, data: bytes) -> str:
    if not data.strip():
        return "is not JSON: it is empty; do not send it"
    if data.startswith(codecs.BOM_UTF8):
        return "is not JSON: it begins with a byte order mark (BOM); send UTF-8 without one"
    if isinstance(error, _LongError):
        return str(error)
    if isinstance(error, RecursionError):
        return "is not JSON that can be parsed: it has too many nested levels"
    if isinstance(error, UnicodeDecodeError):
        return f"is not JSON in UTF-8: {error}"
    return f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}"
