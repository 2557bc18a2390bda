"""The layout of a journal: names of its lanes and their files, and their meaning.

A lane's files are named by an offset of 20 digits, so that names in order are offsets in order::

    00000000000000000000.segment   frames from offset 0 on, one behind the other
    00000000000000131072.segment   the last one is appended to
    00000000000000000500.lost      declares lost a range of offsets that begins at 500
    00000000000000000500.segment.5a1c09de.corrupt   a segment that `repair` has set aside
    lock                           held by the lane's writer

The root has the journal's identity.
"""

import re
import secrets
from typing import Final

from headrace.errors import OptionError

IDENTITY: Final = "journal.json"
LOCK: Final = "lock"
PROBE: Final = "probe"
UNNAMED: Final = ".unnamed"
"""End of the name of a file that HDFS shows while it is being written."""

SEGMENT: Final = "segment"
LOST: Final = "lost"

MAX_LANE: Final = 99_999
MAX_OFFSET: Final = 2**63 - 1

_JOURNAL: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")  # Kafka's rule for topics
_FILE: Final = re.compile(r"([0-9]{20})\.(segment|lost)")
_CORRUPT: Final = ".corrupt"
_LANE: Final = re.compile(r"0|[1-9][0-9]{0,4}")


def checked_journal_name(name: str) -> str:
    """A journal's name, which is its directory's; OptionError where Kafka would not take it."""
    if name in (".", "..") or not _JOURNAL.fullmatch(name):
        raise OptionError(
            f"The journal's name {name!r}, the last part of its path, cannot be used; 1 to 249 "
            "letters, digits, '.', '_' and '-' are allowed, but not '.' or '..' alone."
        )
    return name


def checked_lane(lane: int) -> int:
    """A lane's number; OptionError where it is no whole number from 0 to 99999."""
    if type(lane) is not int or not 0 <= lane <= MAX_LANE:
        raise OptionError(f"The lane {lane!r} is not a whole number from 0 to {MAX_LANE}.")
    return lane


def lane_of(folder: str) -> int | None:
    """The lane whose folder has this name; None for any other."""
    return int(folder) if _LANE.fullmatch(folder) else None


def file_name(first: int, kind: str) -> str:
    """The name of a lane's file of a kind, at an offset."""
    return f"{first:020d}.{kind}"


def parsed(name: str) -> tuple[int, str] | None:
    """The offset and the kind of a lane's file; None for any other name."""
    match = _FILE.fullmatch(name)
    if match is None or (first := int(match[1])) > MAX_OFFSET:
        return None
    return first, match[2]


def corrupt_name(name: str) -> str:
    """A new name for a file that is set aside."""
    return f"{name}.{secrets.token_hex(4)}{_CORRUPT}"


def is_foreign(name: str) -> bool:
    """Whether a file of this name in a lane's folder is no journal's."""
    ours = name in (LOCK, PROBE) or name.endswith((_CORRUPT, UNNAMED))
    return not ours and parsed(name) is None
