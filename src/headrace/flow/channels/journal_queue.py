"""What waits in a journal for one stage, as its blocks' headers tell it."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.control.hop import InputQueue
from headrace.errors import NoJournalError
from headrace.journal import Journal
from headrace.journal.blocks import LaneFiles
from headrace.journal.faults import told
from headrace.ledger import Ledger

_LOOKS_PER_LISTING: Final = 8
"""Listing a journal syncs its folders, so between listings a lane's next block is asked for by
name: what is not found so is a new lane, or what follows where blocks were pruned or lost."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A block's offsets, the bytes of its records, and of those before it in the same count."""

    first: int
    until: int
    raw_bytes: int
    before_bytes: int

    def bytes_until(self, offset: int) -> int:
        """Of all records before an offset; those of a block count as if all had one size."""
        count = min(max(offset, self.first), self.until) - self.first
        return self.before_bytes + self.raw_bytes * count // (self.until - self.first)


@dataclass(slots=True)
class _Lane:
    """What is known of a lane from where its reader was when it was listed first."""

    files: LaneFiles
    position: int
    end: int
    arrived_bytes: int = 0
    taken_bytes: int = 0
    blocks: deque[_Block] = field(default_factory=deque)

    def list(self) -> None:
        """Take in what has come, as the names say."""
        index = self.files.index()
        self.end = max(self.end, index.start)
        holding = index.holding(self.end) or 0
        for first in index.firsts.tolist():
            if first not in index.lost and first >= holding:
                self._take(first)

    def follow(self) -> None:
        """Take in the blocks that come next."""
        while self._take(self.end):
            pass

    def _take(self, first: int) -> bool:
        try:
            header = self.files.header(first)
        except FileNotFoundError:
            return False
        if header.until <= self.end:
            return False
        new = _Block(header.first, header.until, header.raw_bytes, 0)
        counted = new.bytes_until(self.end)
        self.blocks.append(replace(new, before_bytes=self.arrived_bytes - counted))
        self.arrived_bytes += header.raw_bytes - counted
        self.end = header.until
        return True

    def move(self, position: int) -> None:
        """Its reader is there now."""
        self.position = position
        while self.blocks and self.blocks[0].until <= position:
            self.blocks.popleft()
        taken = self.blocks[0].bytes_until(position) if self.blocks else self.arrived_bytes
        self.taken_bytes = max(0, taken)


class JournalQueue:
    """The queue of one stage on one journal; see `headrace.flow.channels.ChannelQueue`.

    What a batch has been given is what the ledger says its gate has begun. What the newest batch
    left is what was there at the last look before that batch, less what it took: the less time
    between looks, the more exact.

    Args:
        path: The journal's; it need not be there yet.
        gate: The reading stage's.
        ledger: That gate's.
    """

    def __init__(self, path: str, gate: str, ledger: Ledger) -> None:
        self._path = path
        self._gate = gate
        self._ledger = ledger
        self._journal: Journal | None = None
        self._lanes: dict[int, _Lane] = {}
        self._gone_bytes = 0
        self._looks = 0
        self._left_bytes: int | None = None

    def look(self) -> InputQueue:
        """What waits now.

        Raises:
            JournalError: the journal cannot be read.
            LedgerError: the ledger cannot be read.
        """
        journal = self._opened()
        if journal is None:
            return InputQueue(waiting_bytes=0, left_bytes=0, arrived_bytes=0)
        begun = self._ledger.stream_rate(self._gate, journal.id).begun
        before = {number: lane.arrived_bytes for number, lane in self._lanes.items()}
        with told(f"The journal {journal.storage.url} cannot be read"):
            self._take_in(journal, begun)
        moved = False
        for number, lane in self._lanes.items():
            moved |= number in before and begun.get(number, 0) > lane.position
            lane.move(max(lane.position, begun.get(number, 0)))
        lanes = self._lanes.values()
        if moved:
            self._left_bytes = sum(
                max(0, before.get(number, 0) - lane.taken_bytes)
                for number, lane in self._lanes.items()
            )
        waiting = sum(lane.arrived_bytes - lane.taken_bytes for lane in lanes)
        return InputQueue(
            waiting_bytes=waiting,
            left_bytes=waiting if self._left_bytes is None else self._left_bytes,
            arrived_bytes=self._gone_bytes + sum(lane.arrived_bytes for lane in lanes),
        )

    def close(self) -> None:
        """Nothing: it holds nothing open."""

    def _opened(self) -> Journal | None:
        if self._journal is None:
            try:
                self._journal = Journal.open(self._path)
            except NoJournalError:
                return None
        return self._journal

    def _take_in(self, journal: Journal, begun: Mapping[int, int]) -> None:
        listing = self._looks % _LOOKS_PER_LISTING == 0
        self._looks += 1
        if listing:
            for number in journal.lanes():
                if number not in self._lanes:
                    self._add(journal, number, begun.get(number, 0))
        for number, lane in self._lanes.items():
            if begun.get(number, 0) < lane.position:
                # A fresh checkpoint: what was read is to be read again.
                self._gone_bytes += lane.arrived_bytes
                self._add(journal, number, begun.get(number, 0))
            elif listing:
                lane.list()
            else:
                lane.follow()

    def _add(self, journal: Journal, number: int, position: int) -> None:
        files = LaneFiles(journal.storage, journal.identity, number)
        lane = self._lanes[number] = _Lane(files, position, position)
        lane.list()
