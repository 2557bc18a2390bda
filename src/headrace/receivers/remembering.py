"""The message ids of a lane's newest records, so that a restart does not forget them."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from headrace.control import OffsetRange
from headrace.errors import JournalError
from headrace.journal import Journal
from headrace.journal.records import message_ids
from headrace.receivers.intake import Intake
from headrace.receivers.telling import number

_MOST_S: Final = 10.0
_MOST_BLOCKS: Final = 10_000
_MOST_BYTES: Final = 256 * 1024 * 1024
"""How far back ids are looked for: on a disk, which takes a second or two, over half an hour of
blocks; over a network, where each block is a request, as far as the time goes. A broker sends again
whatever was not acknowledged, after many restarts in a row as well."""

_LOG: Final = logging.getLogger("headrace.receivers")

_Known = list[tuple[list[str | None], OffsetRange]]
"""The ids of blocks, newest block first, and where these blocks are."""


async def remember(
    journal: Journal,
    lane: int,
    intake: Intake,
    stop: asyncio.Event,
    now_s: Callable[[], float] = time.monotonic,
) -> None:
    """Have an intake know the ids of a lane's last records, as many as it remembers.

    A block that cannot be read ends it, and so does the time, each with a line in the log: the ids
    before are unknown then. A thread reads, so the loop goes on. When this returns or raises, also
    for being cancelled, the thread is done with the journal.

    Args:
        journal: The journal.
        lane: The lane.
        intake: Remembers; nothing has been handed in to it yet.
        stop: Ends it after the block that is being read.
        now_s: The time of a clock that always goes forward.

    Raises:
        JournalError: The lane cannot be listed.
    """
    enough = threading.Event()
    most = intake.settings.remembered_ids
    reading = asyncio.create_task(
        asyncio.to_thread(_newest, journal, lane, most, enough.is_set, now_s)
    )
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        enough.set()
        stopping.cancel()
        await asyncio.wait((reading, stopping))
    for ids, offsets in reversed(reading.result()):
        intake.remember(ids, offsets)


def _newest(
    journal: Journal,
    lane: int,
    most: int,
    is_enough: Callable[[], bool],
    now_s: Callable[[], float],
) -> _Known:
    lost = {each.first for each in journal.lost(lane)}
    firsts = [first for first in reversed(journal.firsts(lane)) if first not in lost]
    known: _Known = []
    count = size_bytes = 0
    began_s = now_s()
    for blocks, first in enumerate(firsts[:_MOST_BLOCKS]):
        if count >= most or size_bytes >= _MOST_BYTES or is_enough():
            break
        if now_s() - began_s >= _MOST_S:
            _tell_cut_off(count, blocks)
            break
        try:
            records = journal.records(lane, first)
        except JournalError as error:
            _LOG.warning("Message ids before a damaged block are not remembered: %s", error)
            break
        count += records.count
        size_bytes += records.batch.nbytes
        if (ids := message_ids(records.batch)) is not None:
            known.append((ids, OffsetRange(journal.name, lane, first, first + records.count)))
    return known


def _tell_cut_off(count: int, blocks: int) -> None:
    _LOG.warning(
        "Message ids are remembered of the newest records only, %s in %s blocks: no more could be"
        " read within %g s; what comes again from before is stored again.",
        number(count),
        number(blocks),
        _MOST_S,
    )
