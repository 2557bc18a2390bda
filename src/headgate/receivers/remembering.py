"""The message ids of a lane's newest records, so that a restart does not forget them."""

import logging
from typing import Final

from headgate.control import OffsetRange
from headgate.errors import JournalError
from headgate.journal import Journal
from headgate.journal.journal import BlockRef
from headgate.receivers.intake import Intake

_MOST_BLOCKS: Final = 1_000
_MOST_BYTES: Final = 256 * 1024 * 1024
"""How far back ids are looked for, so that it takes seconds at most: over three minutes of blocks,
and senders send again within seconds."""

_LOG: Final = logging.getLogger("headgate.receivers")


def remember(journal: Journal, lane: int, intake: Intake) -> None:
    """Have an intake know the ids of a lane's last records, as many as it remembers.

    A block that cannot be read ends it, with a line in the log: those before it are unknown then.

    Raises:
        JournalError: The lane cannot be listed.
    """
    known = []
    for block in _newest(journal.blocks(lane), intake.settings.remembered_ids):
        try:
            ids = journal.records(lane, block.first).batch.column("id")
        except JournalError as error:
            _LOG.warning("Message ids before a damaged block are not remembered: %s", error)
            break
        if ids.null_count < len(ids):
            offsets = OffsetRange(journal.name, lane, block.first, block.until)
            known.append((ids.to_pylist(), offsets))
    for names, offsets in reversed(known):
        intake.remember(names, offsets)


def _newest(blocks: list[BlockRef], records: int) -> list[BlockRef]:
    """The last blocks with so many records, newest first."""
    chosen: list[BlockRef] = []
    size_bytes = 0
    for block in reversed(blocks[-_MOST_BLOCKS:]):
        size_bytes += block.stored_bytes
        if records <= 0 or size_bytes > _MOST_BYTES:
            break
        chosen.append(block)
        records -= block.until - block.first
    return chosen
