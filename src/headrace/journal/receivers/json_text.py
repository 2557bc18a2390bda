"""JSON as it came, byte for byte: whether it is JSON, where its elements are, and lines' ids.

Nothing is built of what is checked: a parser that skips values needs no memory for them, however
many, deep or large they are.
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
"""Most digits of an integer; Python, which may read it later, has the same limit."""

COMMAS_PER_RECORD: Final = 8
"""Most commas per record of an array that has as many records as it may: their number cannot be
known before it is parsed, and each takes memory then.
"""

_UNKNOWN: Final = Lock()
"""For one array at a time that may have more elements than are allowed: each takes 70 bytes."""

_WINDOW_BYTES: Final = (MAX_DIGITS + 1) // 2
"""A longer row of digits fills one of the windows of this size into which data is cut."""

_SPACE: Final = b" \t\r\n"
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|-?([0-9]++)(?:[.eE][0-9.eE+-]*+)?+', re.DOTALL)
_SEVERAL: Final = "is not JSON: trailing characters"
"""Beginning of what is wrong with a body that has more behind its first value."""
_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])


class MalformedError(ValueError):
    """Data is not JSON in UTF-8, or has too long an integer; the text says where.

    Attributes:
        place: How many lines before it are well-formed.
        ids: Theirs, where ids were asked for.
    """

    def __init__(self, text: str, place: int = 0, ids: list[str] | None = None) -> None:
        super().__init__(text)
        self.place = place
        self.ids = ids or []


class TooManyError(ValueError):
    """An array has more elements, or more commas, than are allowed; the text says how many."""


def values_of(body: bytes, max_values: int) -> Sequence[bytes]:
    """The elements of an array, or the one value that is no array, as views of the body.

    A single value is a view of it only where it is most of it: nobody counts the rest any more.

    Raises:
        MalformedError: It is not one JSON value, or has an integer of more than 4300 digits.
        TooManyError: It has more than so many elements, or eight times as many commas.
    """
    try:
        _check_text(body)
        if body.lstrip(_SPACE)[:1] != b"[":
            found = [_VALUE.decode(body)]
        else:
            found = _elements(body, max_values)
        _check_integers(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _LongError) as error:
        wrong = _wrong(error, body)
        if wrong.startswith(_SEVERAL):
            wrong = f"{wrong}; send several values in an array, or as application/x-ndjson"
        raise MalformedError(f"The body {wrong}.") from error
    if len(found) == 1 and len(found[0]) < len(body) // 2:
        return [found[0].copy()]
    return found


def _elements(body: bytes, max_values: int) -> list[msgspec.Raw]:
    commas = body.count(b",")
    if commas >= COMMAS_PER_RECORD * max_values:
        raise TooManyError(too_many_commas(max_values))
    with _UNKNOWN if commas >= max_values else nullcontext():
        found = _ARRAY.decode(body)
        count = len(found)
        if count > max_values:
            found.clear()  # the error's traceback has it
            raise TooManyError(
                f"The array has {count} elements, and a request may have {max_values} records"
            )
    return found


def too_many_commas(max_values: int) -> str:
    """Why a body is refused before anybody knows how many records it has."""
    return (
        f"The body has {COMMAS_PER_RECORD * max_values} commas or more, too many for the"
        f" {max_values} records that a request may have"
    )


def check_lines(data: bytes, first: int = 1) -> None:
    r"""Check that every line, ended by ``\n``, is one JSON value; the last may lack its end.

    If each is an object, the usual case, that takes a tenth of a microsecond for 200 bytes,
    otherwise a third. ``first`` is the number of the first line, for the error.

    Raises:
        MalformedError: A line is not, an empty one too; the text has its number.
    """
    if _objects(data, _VALUE) is None:
        check_values(_lines(data), first, "Line")


def check_values(values: Sequence[bytes], first: int, what: str) -> None:
    """Check that each is one JSON value; ``first`` and ``what`` name the first, for the error.

    Raises:
        MalformedError: One is not; the text has its number.
    """
    for place, value in enumerate(values):
        _checked(_VALUE, value, place, f"{what} {first + place}", [])


def ids_of_lines(data: bytes, field: str, first: int = 1) -> list[str]:
    """Return the message id of each line, a JSON object, in a field; otherwise as `check_lines`.

    Raises:
        MalformedError: A line is no object, or has no text or whole number there that can be a
            message id.
    """
    decoder = _id_decoder(field)
    whole = _objects(data, decoder)
    if whole is not None:
        ids = [_id_text(each) for each in whole]
        if all(map(is_message_id, ids)):
            return ids
    return ids_of_values(_lines(data), field, first, "Line")


def ids_of_values(values: Sequence[bytes], field: str, first: int, what: str) -> list[str]:
    """Return the message id of each value, a JSON object, in a field; otherwise as `check_values`.

    Raises:
        MalformedError: One is no object, or has no text or whole number there that can be a message
            id.
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
                f" {field!r} is a text of 1 to {MAX_ID_CHARACTERS} characters, or a whole number of"
                " 64 bits.",
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
    r"""Return each line, decoded, if all are objects that the decoder knows; None if perhaps not.

    If each line begins and ends like this no object goes on in the next line, for between two
    braces a comma would be missing; so when there are as many objects as lines, each has one.
    """
    count = data.count(b"\n") + (not data.endswith(b"\n"))
    begun = data.count(b"\n{") + data.startswith(b"{")
    ended = data.count(b"}\n") + data.count(b"}\r\n") + data.endswith(b"}")
    if not begun == ended == count:
        return None
    try:
        _check_text(data)
        found = decoder.decode_lines(data)
        _check_integers(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _LongError):
        return None
    return found if len(found) == count else None


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
    """An integer has more digits than are allowed."""


def _check_text(data: bytes) -> None:
    """Raise UnicodeDecodeError where it is not UTF-8; without a copy of what is."""
    if data.isascii():
        return
    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(data)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        data.decode()


def _check_integers(data: bytes) -> None:
    """Raise where well-formed JSON has an integer that is too long; in a string it may be."""
    windows = range(0, len(data) - _WINDOW_BYTES + 1, _WINDOW_BYTES)
    if not any(data[start : start + _WINDOW_BYTES].isdigit() for start in windows):
        return
    for token in _TOKEN.finditer(data):
        digits = len(token[1] or b"")
        if digits > MAX_DIGITS and token.end() == token.end(1):
            raise _LongError(
                f"has an integer of {digits} digits, and {MAX_DIGITS} are allowed; send it as a"
                " string"
            )


def _wrong(error: Exception, data: bytes) -> str:
    if not data.strip():
        return "is not JSON: it is empty; leave it out"
    if data.startswith(codecs.BOM_UTF8):
        return "is not JSON: it begins with a byte order mark (BOM); send UTF-8 without one"
    if isinstance(error, _LongError):
        return str(error)
    if isinstance(error, RecursionError):
        return "is not JSON that can be read: it is nested deeper than some hundred levels"
    if isinstance(error, UnicodeDecodeError):
        return f"is not JSON in UTF-8: {error}"
    return f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}"
