"""The message ids of a lane's newest records, so that a restart does not forget them."""

import logging
from typing import Final

from headgate.control import OffsetRange
from headgate.errors import JournalError
from headgate.journal import Journal
from headgate.receivers.intake import Intake

_MOST_BLOCKS: Final = 10_000
_MOST_BYTES: Final = 256 * 1024 * 1024
"""How far back ids are looked for, so that it takes seconds at most: over half an hour of blocks. A
broker sends again whatever was not acknowledged, after many restarts in a row as well."""

_LOG: Final = logging.getLogger("headgate.receivers")


def remember(journal: Journal, lane: int, intake: Intake) -> None:
    """Have an intake know the ids of a lane's last records, as many as it remembers.

    A block that cannot be read ends it, with a line in the log: those before it are unknown then.

    Raises:
        JournalError: The lane cannot be listed.
    """
    lost = {each.first for each in journal.lost(lane)}
    newest = [first for first in reversed(journal.firsts(lane)) if first not in lost]
    known = []
    count = size_bytes = 0
    for first in newest[:_MOST_BLOCKS]:
        if count >= intake.settings.remembered_ids or size_bytes >= _MOST_BYTES:
            break
        try:
            records = journal.records(lane, first)
        except JournalError as error:
            _LOG.warning("Message ids before a damaged block are not remembered: %s", error)
            break
        count += records.count
        size_bytes += records.batch.nbytes
        ids = records.batch.column("id")
        if ids.null_count < len(ids):
            offsets = OffsetRange(journal.name, lane, first, first + records.count)
            known.append((ids.to_pylist(), offsets))
    for names, offsets in reversed(known):
        intake.remember(names, offsets)
