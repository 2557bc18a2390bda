"""Cap of a journal: senders wait while the journal is too large or its unread records too old."""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Final

from headrace.core.options import require_number, require_whole
from headrace.core.timing import wall_clock_ms
from headrace.errors import JournalError, LedgerError
from headrace.gate import Ledger
from headrace.journal import Journal
from headrace.journal.receivers.event_log import event
from headrace.journal.receivers.intake import Intake
from headrace.journal.receivers.option import option

_LOG: Final = logging.getLogger("headrace.receivers")

CHECK_S: Final = 1.0
"""Interval at which `JournalCap.keep` checks whether a measurement of the journal is due (s)."""

_MEASURE_S: Final = 5.0
_SHARE: Final = 20
"""The time between two regular measurements is this many times the duration of a measurement, and
at least 5 s. So measuring takes at most a 20th of the time."""


_MOST_GROWTH: Final = 16.0
"""Number of storage bytes for each byte of records that is assumed before the first measurement.
The value is high, because a block with a single record of 60 bytes takes 700 bytes."""


@dataclass(frozen=True, slots=True)
class CapSettings:
    """Limits of a journal's size and age, beyond which senders wait.

    Attributes:
        max_journal_bytes: Largest size of the journal on its storage, all lanes together, with
            read and unread records (bytes); at least ``block_bytes``. Default: None, no limit but
            the disk. If too large, the disk is full first; if too small, senders wait although
            there is space. The journal may exceed the limit by one second's records and the buffer.
        max_unread_s: Largest age of the lane's oldest unread record (s); above 0. A record is
            unread until a gate has processed it. Default: None, any age. Requires a gate, because
            its ledger shows which records are processed.

    Raises:
        OptionError: A value is out of its range.
    """

    max_journal_bytes: int | None = field(default=None, metadata=option("--max-journal-bytes"))
    max_unread_s: float | None = None

    def __post_init__(self) -> None:
        if self.max_journal_bytes is not None:
            require_whole("max_journal_bytes", self.max_journal_bytes, 1, unit="bytes")
        if self.max_unread_s is not None:
            require_number("max_unread_s", self.max_unread_s, "s", above=True)

    @property
    def is_set(self) -> bool:
        """Whether a limit of the size or of the age is set."""
        return self.max_journal_bytes is not None or self.max_unread_s is not None

    @property
    def segment_bytes(self) -> int | None:
        """Size at which the writer begins a new segment (bytes); None if the size has no cap.

        It is an eighth of the cap. Pruning keeps a lane's last segment. If this segment were the
        whole journal, nothing could be pruned at the cap, and senders would wait for ever.
        """
        return None if self.max_journal_bytes is None else max(1, self.max_journal_bytes // 8)


class JournalCap:
    """Cap of a journal: measures the journal, and makes senders wait while it exceeds the cap."""

    def __init__(
        self, journal: Journal, lane: int, settings: CapSettings, ledger: Ledger | None
    ) -> None:
        self._journal = journal
        self._lane = lane
        self._settings = settings
        self._ledger = ledger
        self._room_bytes = 0
        self._stored_bytes = 0
        self._measured_s = 0.0
        self._took_s = 0.0
        self._growth = _MOST_GROWTH
        """Storage bytes for each byte of keys, values and headers, at the last measurement."""
        self._size_before: int | None = None
        self._came_before = 0
        self._reason: str | None = None

    async def apply(self, intake: Intake) -> None:
        """Measure the journal once, and make the intake's senders wait if its cap is exceeded.

        If the journal is within its cap again, let the senders continue.

        Raises:
            JournalError: The journal cannot be listed.
        """
        self._stored_bytes = intake.statistics.stored_bytes
        before = self._reason
        reason = await asyncio.to_thread(self._measured, before)
        self._measured_s = time.monotonic()
        self._reason = reason
        intake.refuse("journal", reason)
        if before is None and reason is not None:
            _LOG.warning("%s", reason, extra=event("refusing", reason=reason))
        elif before is not None and reason is None:
            _LOG.info(
                "The journal is within its cap again; senders continue.", extra=event("released")
            )

    async def keep(self, intake: Intake) -> None:
        """Apply the cap whenever a measurement of the journal is due, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            came_bytes = intake.statistics.stored_bytes - self._stored_bytes
            is_due = time.monotonic() - self._measured_s >= max(_MEASURE_S, _SHARE * self._took_s)
            if is_due or came_bytes * self._growth >= self._room_bytes > 0:
                with contextlib.suppress(JournalError):  # the block writer logs it
                    await self.apply(intake)

    def _measured(self, before: str | None) -> str | None:
        began_s = time.monotonic()
        try:
            return self._too_large() or self._too_old()
        except LedgerError:
            return before  # RateFollower logs that the ledger is unreachable
        finally:
            self._took_s = time.monotonic() - began_s

    def _too_large(self) -> str | None:
        most_bytes = self._settings.max_journal_bytes
        if most_bytes is None:
            return None
        journal = self._journal
        size_bytes = journal.allocated_bytes()
        came_bytes = self._stored_bytes - self._came_before
        if self._size_before is not None and came_bytes:
            self._growth = max((size_bytes - self._size_before) / came_bytes, 1.0)
        self._size_before, self._came_before = size_bytes, self._stored_bytes
        self._room_bytes = max(0, most_bytes - size_bytes)
        if size_bytes < most_bytes:
            return None
        return (
            f"The journal {journal.name} has {size_bytes:,} bytes, and its cap max_journal_bytes is"
            f" {most_bytes:,}, so senders wait; process and prune the journal, or raise the cap."
        )

    def _too_old(self) -> str | None:
        if (most_s := self._settings.max_unread_s) is None or self._ledger is None:
            return None
        lane = self._lane
        # keeps_last=False counts a finished last batch as read, although Spark may repeat it.
        # While senders wait, there is no next batch that would confirm it.
        processed = self._ledger.history.processed_until(self._journal.id, [lane], keeps_last=False)
        until = min((row.until for row in processed if row.partition == lane), default=0)
        unread = (block for block in self._journal.blocks(lane) if block.until > until)
        oldest = next(unread, None)
        if oldest is None:
            return None
        age_s = (wall_clock_ms() - oldest.created_ms) / 1000
        if age_s < most_s:
            return None
        return (
            f"Lane {lane} of the journal {self._journal.name} has records that are unread for"
            f" {age_s:,.0f} s, and its cap max_unread_s is {most_s:g}, so senders wait; check the"
            " query that reads the journal."
        )
