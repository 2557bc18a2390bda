"""File names of a journal and its lanes.

The name of a lane's file begins with an offset of 20 digits, so the order of names is the order of
offsets::

    00000000000000000000.segment   frames from offset 0 on, one after the other
    00000000000000131072.segment   the last segment, to which the writer appends
    00000000000000000500.lost      declares a range of offsets from 500 on lost
    00000000000000000500.segment.5a1c09de.corrupt   a segment that `repair` has set aside
    lock                           locked by the lane's writer

A segment's name is its first offset, and no segment is ever overwritten. If two writers write the
same offset, the second one finds the name taken. So a lane has one writer even on an object store,
which has no locks. The root folder has the journal's identity, ``journal.json``.
"""

import re
import secrets
from typing import Final

from headrace.errors import OptionError

IDENTITY: Final = "journal.json"
LOCK: Final = "lock"
PROBE: Final = "probe"
UNNAMED: Final = ".unnamed"
"""Suffix of the temporary name under which a file is written to HDFS before it is renamed."""

SEGMENT: Final = "segment"
LOST: Final = "lost"

MAX_LANE: Final = 99_999
MAX_OFFSET: Final = 2**63 - 1

_JOURNAL: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")  # Kafka's rule for topics
_FILE: Final = re.compile(r"([0-9]{20})\.(segment|lost)")
_CORRUPT: Final = ".corrupt"
_LANE: Final = re.compile(r"0|[1-9][0-9]{0,4}")


def checked_journal_name(name: str) -> str:
    """Return a journal's name if Kafka allows it as a topic's name; otherwise raise OptionError."""
    if name in (".", "..") or not _JOURNAL.fullmatch(name):
        raise OptionError(
            f"The journal's name {name!r}, the last component of its path, is not allowed; use 1 "
            "to 249 letters, digits, '.', '_' and '-', but not '.' or '..' alone."
        )
    return name


def checked_lane(lane: int) -> int:
    """Return a lane's number; raise OptionError if it is not a whole number from 0 to 99999."""
    if type(lane) is not int or not 0 <= lane <= MAX_LANE:
        raise OptionError(
            f"The lane {lane!r} is not allowed; it must be a whole number from 0 to {MAX_LANE}."
        )
    return lane


def lane_of(folder: str) -> int | None:
    """Return the lane's number from a folder's name; None if the name is not a lane's number."""
    return int(folder) if _LANE.fullmatch(folder) else None


def file_name(first: int, kind: str) -> str:
    """Return the name of a lane's file, from its first offset and its kind."""
    return f"{first:020d}.{kind}"


def parsed(name: str) -> tuple[int, str] | None:
    """Return the first offset and the kind from the name of a lane's file; None for other names."""
    match = _FILE.fullmatch(name)
    if match is None or (first := int(match[1])) > MAX_OFFSET:
        return None
    return first, match[2]


def corrupt_name(name: str) -> str:
    """Return a new name for a file to set aside: its name, a random part, and ``.corrupt``."""
    return f"{name}.{secrets.token_hex(4)}{_CORRUPT}"


def is_foreign(name: str) -> bool:
    """Whether a file in a lane's folder has a name that a journal never creates."""
    ours = name in (LOCK, PROBE) or name.endswith((_CORRUPT, UNNAMED))
    return not ours and parsed(name) is None
