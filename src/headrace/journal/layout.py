"""The layout of a journal: names of lanes and of their files.

The name of a lane's file is an offset of 20 digits, so sorted names are sorted offsets::

    00000000000000000000.segment   frames from offset 0 on, one behind the other
    00000000000000131072.segment   the last segment, which the writer appends to
    00000000000000000500.lost      declares lost a range of offsets that begins at 500
    00000000000000000500.segment.5a1c09de.corrupt   a segment that `repair` has set aside
    lock                           held by the lane's writer

A segment's name is its first offset, and no segment is ever overwritten. Because a name exists only
once, a lane has one writer even on an object store, which has no locks. The root folder holds the
journal's identity.
"""

import re
import secrets
from typing import Final

from headrace.errors import OptionError

IDENTITY: Final = "journal.json"
LOCK: Final = "lock"
PROBE: Final = "probe"
UNNAMED: Final = ".unnamed"
"""Suffix of a file that is still being written, which HDFS lists already."""

SEGMENT: Final = "segment"
LOST: Final = "lost"

MAX_LANE: Final = 99_999
MAX_OFFSET: Final = 2**63 - 1

_JOURNAL: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")  # Kafka's rule for topics
_FILE: Final = re.compile(r"([0-9]{20})\.(segment|lost)")
_CORRUPT: Final = ".corrupt"
_LANE: Final = re.compile(r"0|[1-9][0-9]{0,4}")


def checked_journal_name(name: str) -> str:
    """Return a journal's name (its directory's); OptionError if Kafka refuses such a topic."""
    if name in (".", "..") or not _JOURNAL.fullmatch(name):
        raise OptionError(
            f"The journal's name {name!r}, the last part of its path, cannot be used; 1 to 249 "
            "letters, digits, '.', '_' and '-' are allowed, but not '.' or '..' alone."
        )
    return name


def checked_lane(lane: int) -> int:
    """Return a lane's number; OptionError if it is not a whole number from 0 to 99999."""
    if type(lane) is not int or not 0 <= lane <= MAX_LANE:
        raise OptionError(f"The lane {lane!r} is not a whole number from 0 to {MAX_LANE}.")
    return lane


def lane_of(folder: str) -> int | None:
    """Return the number of the lane in a folder; None if a folder's name is not a lane's."""
    return int(folder) if _LANE.fullmatch(folder) else None


def file_name(first: int, kind: str) -> str:
    """Return the name of a lane's file, from its first offset and its kind."""
    return f"{first:020d}.{kind}"


def parsed(name: str) -> tuple[int, str] | None:
    """Return the offset and the kind from the name of a lane's file; None for any other name."""
    match = _FILE.fullmatch(name)
    if match is None or (first := int(match[1])) > MAX_OFFSET:
        return None
    return first, match[2]


def corrupt_name(name: str) -> str:
    """Return a new, random name for a file that `repair` sets aside."""
    return f"{name}.{secrets.token_hex(4)}{_CORRUPT}"


def is_foreign(name: str) -> bool:
    """Whether a name in a lane's folder belongs to no file of a journal."""
    ours = name in (LOCK, PROBE) or name.endswith((_CORRUPT, UNNAMED))
    return not ours and parsed(name) is None
