"""Whether lines are JSON objects, told by Arrow's parser: without an object of Python's for any."""

import re
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import json

WORTH_ARROW_BYTES: Final = 16 * 1024
"""Below it, calling Arrow takes longer than looking at the lines."""

_OPTIONS: Final = json.ParseOptions(
    explicit_schema=pa.schema([]), unexpected_field_behavior="ignore"
)
_LONG: Final = 4300
_DIGITS: Final = re.compile(rb"(?<![0-9])[0-9]{%d}" % (_LONG + 1))
"""What may be an integer that is too long, which Arrow does not mind."""

_NOT_IN_JSON: Final = (b"\0", b"NaN", b"Inf")
"""What Arrow understands although it is not JSON. Where it is in a string, no harm is done: the
answer is no, and somebody looks closer."""


def are_objects(data: bytes) -> bool:
    r"""Whether every line, ended by ``\n``, surely is one JSON object; the last may lack its end.

    If not, it is not known: they may be JSON all the same.
    """
    if any(each in data for each in _NOT_IN_JSON if each[:1] in data) or not _is_utf8(data):
        return False
    text = np.frombuffer(data if data.endswith(b"\n") else data + b"\n", np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    starts = np.concatenate(([0], ends[:-1] + 1))
    # Where each line begins and ends like this no object goes on in the next line, for between two
    # braces a comma would be missing; so when there are as many objects as lines, each has one.
    if not (np.all(text[starts] == ord("{")) and np.all(text[ends - 1] == ord("}"))):
        return False
    if np.max(ends - starts) > _LONG and _DIGITS.search(data):
        return False
    try:
        found = json.read_json(pa.BufferReader(data), parse_options=_OPTIONS)
    except pa.ArrowInvalid:
        return False
    return int(found.num_rows) == len(ends)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
