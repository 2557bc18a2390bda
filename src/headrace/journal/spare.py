"""A lane whose last block has lost its name: for how long, and what is said of it.

Only the lane's mark has such a block still. A writer that is about to name it leaves that for some
milliseconds; a power failure, until the lane is opened to be written: those records were never
acknowledged. A damaged file system leaves it for good, of records that were. So nobody reads such a
block, and what can wait does.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.core.ranges import TopicPartition
from headrace.errors import CorruptionError
from headrace.journal.blocks import LaneLook
from headrace.journal.journal import Journal

if TYPE_CHECKING:
    from headrace.core.clock import Clock

_LOG: Final = logging.getLogger("headrace.journal")

_LOOKS: Final = 5
_PAUSE_S: Final = 0.2
_LONG_S: Final = 5.0


def settled(journal: Journal, lane: int, clock: "Clock" = time) -> LaneLook:
    """Where a lane begins and ends, once its last block has its name; waits a second for that.

    Raises:
        CorruptionError: The last block has lost its name, or is damaged.
        JournalError: The lane cannot be read.
    """
    look = journal.look(lane)
    if look.end.spare:
        for _ in pauses(clock):
            look = journal.look(lane)
            if not look.end.spare:
                break
        else:
            raise CorruptionError(look.without_name)
    return look


def pauses(clock: "Clock") -> Iterator[None]:
    """Wait a little before each of some further looks at a block without a name."""
    for _ in range(_LOOKS):
        clock.sleep(_PAUSE_S)
        yield


@dataclass(slots=True)
class _Seen:
    reached: int
    since_s: float
    logged: bool = False


class SpareWatch:
    """Logs, once, that a lane's last block has had no name for five seconds.

    Args:
        clock: The time.
    """

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._seen: dict[TopicPartition, _Seen] = {}

    def note(self, lane: TopicPartition, look: LaneLook) -> None:
        """Take note of one look at a lane."""
        end, now_s = look.end, self._clock.monotonic()
        seen = self._seen.get(lane)
        if not end.spare:
            self._seen.pop(lane, None)
        elif seen is None or seen.reached != end.reached:
            self._seen[lane] = _Seen(end.reached, now_s)
        elif not seen.logged and now_s - seen.since_s >= _LONG_S:
            seen.logged = True
            _LOG.warning("%s Until then the query goes on without them.", look.without_name)
