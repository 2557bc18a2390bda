"""A journal as a channel: the journal holds each batch once, so any reader will do."""

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from headrace.control.input_queue import InputQueue
from headrace.core.timing import wall_clock_ms
from headrace.errors import LaneTakenError, NoJournalError, OptionError
from headrace.flow.channel import (
    ancestry,
    is_finished,
    never_run_again,
    output_columns,
)
from headrace.flow.stage import option_text
from headrace.journal import Journal
from headrace.journal.batch_writer import BatchWriter, new_attempt, stage
from headrace.journal.lane_files import LaneFiles
from headrace.journal.names import checked_journal_name, checked_lane
from headrace.journal.storage import as_journal_error
from headrace.ledger import Ledger

_LOG: Final = logging.getLogger("headrace.flow")

_STAGED: Final = "task int, number int, name string"
_LANE_POLL_S: Final = 0.05

_POLLS_PER_LISTING: Final = 8
"""Listing a journal syncs its folders, so between listings a lane's next block is asked for by
name: what is not found so is a new lane, or what follows where blocks were pruned or lost."""


@dataclass(frozen=True, slots=True)
class _QueuedBlock:
    """A block's offsets, the bytes of its records, and of those before it in the same count."""

    first: int
    until: int
    raw_bytes: int
    before_bytes: int

    def bytes_until(self, offset: int) -> int:
        """Return the bytes of all records before an offset, as if all in a block had one size."""
        count = min(max(offset, self.first), self.until) - self.first
        return self.before_bytes + self.raw_bytes * count // (self.until - self.first)


@dataclass(slots=True)
class _QueuedLane:
    """State of a lane since its reader's position when it was listed first."""

    files: LaneFiles
    position: int
    end: int
    arrived_bytes: int = 0
    taken_bytes: int = 0
    blocks: deque[_QueuedBlock] = field(default_factory=deque)

    def list_blocks(self) -> None:
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
        new = _QueuedBlock(header.first, header.until, header.raw_bytes, 0)
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
    """The queue of one stage on one journal: exact, as the headers of its blocks tell it.

    A batch's records are the offsets that its gate has begun, as the ledger says. Its remainder is
    the queue at the last measurement before the newest batch, less that batch: the less time
    between two measurements, the more exact.
    """

    def __init__(self, path: str, gate: str, ledger: Ledger) -> None:
        self._path = path
        self._gate = gate
        self._ledger = ledger
        self._journal: Journal | None = None
        self._lanes: dict[int, _QueuedLane] = {}
        self._reread_bytes = 0
        self._polls = 0
        self._left_bytes: int | None = None

    def measure(self) -> InputQueue:
        """Measure the queue now; raises `JournalError` or `LedgerError` if it cannot be read."""
        journal = self._opened()
        if journal is None:
            return InputQueue(waiting_bytes=0, left_bytes=0, arrived_bytes=0)
        begun = self._ledger.receivers.stream_rate(self._gate, journal.id).begun
        before = {number: lane.arrived_bytes for number, lane in self._lanes.items()}
        with as_journal_error(f"The journal {journal.storage.url} cannot be read"):
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
            arrived_bytes=self._reread_bytes + sum(lane.arrived_bytes for lane in lanes),
        )

    def close(self) -> None:
        """Do nothing: it has nothing open."""

    def _opened(self) -> Journal | None:
        if self._journal is None:
            try:
                self._journal = Journal.open(self._path)
            except NoJournalError:
                return None
        return self._journal

    def _take_in(self, journal: Journal, begun: Mapping[int, int]) -> None:
        listing = self._polls % _POLLS_PER_LISTING == 0
        self._polls += 1
        if listing:
            for number in journal.lanes():
                if number not in self._lanes:
                    self._add(journal, number, begun.get(number, 0))
        for number, lane in self._lanes.items():
            if begun.get(number, 0) < lane.position:
                # A fresh checkpoint: what was read is to be read again.
                self._reread_bytes += lane.arrived_bytes
                self._add(journal, number, begun.get(number, 0))
            elif listing:
                lane.list_blocks()
            else:
                lane.follow()

    def _add(self, journal: Journal, number: int, position: int) -> None:
        files = LaneFiles(journal.storage, journal.identity, number)
        lane = self._lanes[number] = _QueuedLane(files, position, position)
        lane.list_blocks()


@dataclass(frozen=True)
class JournalChannel:
    """A journal in a directory, of which one stage writes a lane; made by `journal`.

    The directory must be the same one for the driver and for every executor.

    Attributes:
        lane: Which lane is written; all are read.
        lane_timeout_s: How long a batch waits for a lane that another process writes (s).
    """

    path: str
    lane: int = 0
    options: Mapping[str, str] = field(default_factory=dict, compare=False)
    lane_timeout_s: float = field(default=30.0, compare=False)

    has_one_writer: ClassVar = True
    source: ClassVar = "journal"

    @property
    def location(self) -> str:
        """The directory."""
        return f"the journal {self.path}"

    @property
    def place(self) -> str:
        """The directory, with the links in its path followed as this machine follows them."""
        return os.path.realpath(self.path)

    @property
    def written_place(self) -> str:
        """The directory and the lane."""
        return f"{self.place}, lane {self.lane}"

    def identity(self) -> str:
        """Return the journal's id."""
        return Journal.open(self.path).id

    def check_reachable(self) -> None:
        """Make the journal if need be; raises `JournalError` where that is not possible."""
        Journal.open(self.path, create=True)

    def write(self, df: DataFrame, batch_key: str, ledger: Ledger) -> None:
        """Write a batch whole, and once.

        Tasks stage its records as blocks; when all are durable, a manifest is written that says
        which offsets they get, and from then on the batch is written. A crash before leaves
        nothing, one after it is completed by the next writer of the lane. The lane is this writer's
        for as long as that takes; while another has it, the call waits for `lane_timeout_s`.

        Raises:
            LaneTakenError: Another writer has the lane.
        """
        output = output_columns(df, self.location)
        journal = Journal.open(self.path, create=True)
        with _claimed(journal, self.lane, self.lane_timeout_s) as writer:
            writer.forget(never_run_again(writer.written, ledger))
            is_written = any(key in writer.written for key in ancestry(batch_key))
            if is_written or is_finished(batch_key, ledger):
                _LOG.info("Batch %s is in %s already.", batch_key, self.location)
                return
            names = _staged(output, journal, self.lane)
            if names:
                writer.commit(batch_key, names)

    def read_options(self, ledger_url: str) -> dict[str, str]:
        """The journal's options, once it is made; raises `JournalError` where it cannot be."""
        return {**self.options, "path": Journal.open(self.path, create=True).storage.url}

    def queue(self, gate: str, ledger: Ledger) -> JournalQueue:
        """Return the queue of the stage whose gate this is."""
        return JournalQueue(self.path, gate, ledger)


def journal(path: str, *, lane: int = 0, **options: object) -> JournalChannel:
    """A channel that is a journal in a directory; it is made when it is first used.

    Args:
        path: The directory, which every machine that runs tasks sees under this path.
        lane: The lane that is written.
        **options: Of ``format("headrace-journal")``, for the stages that read it.

    Raises:
        OptionError: No stage can write such a path, or the lane is out of range.
    """
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        raise OptionError(
            f"The channel {path} cannot be written: a batch goes into a journal as a whole only"
            " where it is in a directory; give a path, or use a Kafka channel."
        )
    checked_journal_name((rest if separator else path).rstrip("/").rpartition("/")[2])
    if separator and not rest.startswith("/"):
        raise OptionError(f"The URL {path} has no absolute path; write file:///path.")
    texts = {name: option_text(value) for name, value in options.items()}
    # One directory is one channel, however it is written.
    here = os.path.abspath(rest or path)  # noqa: PTH100  (links in it are kept)
    return JournalChannel(here, checked_lane(lane), texts)


def _claimed(journal: Journal, lane: int, timeout_s: float) -> BatchWriter:
    """The lane, once nobody else writes it."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return BatchWriter(journal, lane)
        except LaneTakenError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_LANE_POLL_S)


def _staged(output: DataFrame, journal: Journal, lane: int) -> list[str]:
    """Have tasks write the records; their blocks, in the order of the tasks."""
    url, journal_id = journal.storage.url, journal.id
    attempt, timestamp_ms = new_attempt(), wall_clock_ms()

    def staged_by_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None  # noqa: S101  (it runs in a task)
        there = Journal.open(url)
        if there.id != journal_id:
            raise OptionError(
                f"The journal {url} is another one where this task runs; the directory must be"
                " the same on every machine."
            )
        number = task.taskAttemptId()
        names = stage(there, lane, attempt, number, batches, timestamp_ms=timestamp_ms)
        for position, name in enumerate(names):
            yield pa.record_batch(
                {
                    "task": pa.array([task.partitionId()], pa.int32()),
                    "number": pa.array([position], pa.int32()),
                    "name": pa.array([name]),
                }
            )

    rows = output.mapInArrow(staged_by_task, _STAGED).collect()
    return [row["name"] for row in sorted(rows, key=lambda row: (row["task"], row["number"]))]
