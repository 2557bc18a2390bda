"""Reading of a lane's records in the columns and types of Kafka's source.

Checksums detect a lane that was restored from an older copy and then written to. Each frame has the
checksum of the previous frame, and a stream's offset has the checksum of the block before each
position. `check_unchanged` compares these checksums. Reading needs no extra request for the
comparison, because it reads the headers anyway. Planning reads one more header for each lane in
which a batch ends before the lane's end.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError, DataLossError, HeadraceError, JournalError, OptionError
from headrace.gate import ARROW_SCHEMA
from headrace.journal.frame import FrameHeader, Frames
from headrace.journal.lane import RUN_BYTES, Lane, LaneIndex, Lost
from headrace.journal.records import SCHEMA

_CREATE_TIME: Final = 0
_STORED: Final = ("key", "value", "timestamp", "headers")

OnLoss = Callable[[OffsetRange, str], None]
"""Callback for offsets that were declared lost or pruned, called with the offsets and the reason.
It may raise."""


def check_columns(columns: Sequence[str]) -> None:
    """Raise OptionError if a journal lacks one of these columns."""
    for column in columns:
        if column not in ARROW_SCHEMA.names:
            raise OptionError(
                f"A journal has no column {column!r}; its columns are"
                f" {', '.join(ARROW_SCHEMA.names)}."
            )


def _as_kafka(
    batch: pa.RecordBatch, offsets: OffsetRange, columns: Sequence[str]
) -> pa.RecordBatch:
    """Convert a batch to ``columns`` of Kafka's source, without copying keys and values."""
    count = offsets.count

    def column(name: str) -> pa.Array:
        match name:
            case "topic":
                return pa.repeat(pa.scalar(offsets.topic, pa.string()), count)
            case "partition":
                return pa.repeat(pa.scalar(offsets.partition, pa.int32()), count)
            case "offset":
                return pa.array(np.arange(offsets.start, offsets.until, dtype=np.int64))
            case "timestampType":
                return pa.repeat(pa.scalar(_CREATE_TIME, pa.int32()), count)
            case "timestamp":
                return batch.column(name).cast(ARROW_SCHEMA.field(name).type)
            case _:
                return batch.column(name)

    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([column(name) for name in columns], schema=schema)


def read_lane(
    lane: Lane,
    offsets: OffsetRange,
    columns: Sequence[str],
    on_loss: OnLoss | None = None,
    *,
    after: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Read a range of a lane, with the parameters and errors of `Journal.read`.

    Raise OSError if the storage fails. Consecutive small frames are yielded as one batch.
    """
    stored = [column for column in columns if column in _STORED]
    at, checksum, finder = offsets.start, after, _Finder(lane, stored, offsets.until)
    while at < offsets.until:
        run_or_loss = finder.at(at)
        if isinstance(run_or_loss, Lost):
            stop, checksum = min(offsets.until, run_or_loss.until), 0
            if on_loss is not None:
                reason = f"declared lost by a repair: {run_or_loss.reason}"
                on_loss(replace(offsets, start=at, until=stop), reason)
        elif run_or_loss:
            header, until, batch = run_or_loss
            if checksum and at == offsets.start:
                now = header.previous if header.first == at else header.checksum
                check_unchanged(lane, at, now, checksum)
            stop = min(offsets.until, until)
            rows = batch.slice(at - header.first, stop - at)
            yield _as_kafka(rows, replace(offsets, start=at, until=stop), columns)
        elif on_loss is not None and at < (begin := lane.index().start):
            stop = min(offsets.until, begin)
            pruned = f"lane {lane.lane} now begins at {begin}"
            on_loss(replace(offsets, start=at, until=stop), pruned)
        else:
            raise _missing(lane, at)
        at = stop


_Run = tuple[FrameHeader, int, pa.RecordBatch]
"""Run of frames: the first frame's header, the offset after the last frame, and the records."""


class _Finder:
    """Finder of the frames from an offset on; it lists the lane's files as rarely as possible."""

    def __init__(self, lane: Lane, columns: Sequence[str], until: int) -> None:
        self._lane = lane
        self._columns = columns
        self._until = until
        self._index: LaneIndex | None = None
        self._known: tuple[LaneIndex, int, Frames] | None = None

    def at(self, offset: int) -> _Run | Lost | None:
        """Return the frames from an offset on, or the declared loss that includes the offset.

        Return None if no frame or declared loss includes the offset.
        """
        if self._index is None and not self._lane.storage.appends:
            try:
                return self._whole(offset)  # consecutive blocks need no listing
            except (FileNotFoundError, CorruptionError):
                pass  # the offset is within a block, or was declared lost
        try:
            if self._index is not None and (run := self._listed(self._index, offset)):
                return run
        except FileNotFoundError:
            pass  # pruned since the listing
        self._index = index = self._lane.index()
        try:
            return self._listed(index, offset)
        except FileNotFoundError:
            return None

    def _listed(self, index: LaneIndex, offset: int) -> _Run | Lost | None:
        if (lost := self._lane.loss_of(index, offset)) is not None:
            return lost
        segment = index.segment_of(offset)
        if segment is None:
            return None
        if not self._lane.storage.appends:
            run = self._whole(segment)
            return run if offset < run[0].until else None
        frames, number = self._holding(index, segment, offset)
        if number is None:
            return None
        last = frames.holding(min(self._until, frames.until) - 1)
        _, end = next(frames.runs(number, (number if last is None else last) + 1, RUN_BYTES))
        return self._lane.read_run(segment, frames, number, end, self._columns)

    def _holding(self, index: LaneIndex, segment: int, offset: int) -> tuple[Frames, int | None]:
        """Return a segment's frames, and the index of the frame that contains an offset.

        Frames from an earlier call are used first, because they are known to be durable. Looking
        for more frames costs a sync, which on some disks is a request to the device even if nothing
        was written.
        """
        if self._known is not None and self._known[:2] == (index, segment):
            frames = self._known[2]
            if (number := frames.holding(offset)) is not None:
                return frames, number
        frames = self._lane.frames_of(index, segment)
        self._known = index, segment, frames
        return frames, frames.holding(offset)

    def _whole(self, segment: int) -> _Run:
        """Read a segment that was written by one ``put``, and return its only frame."""
        data = self._lane.storage.read(self._lane.path(segment))
        header, batch = self._lane.decoded(segment, segment, data, self._columns)
        return header, header.until, batch


def read_back(lane: Lane) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield a lane's records in batches, newest batch first, each with its first offset.

    The records have all columns of ``SCHEMA``. Consecutive small frames are one batch. Offsets that
    were declared lost are skipped. Raise OSError if the storage fails, and ``CorruptionError`` at a
    damaged or missing frame.
    """
    index = lane.index()
    until = lane.end(index).until
    losses = lane.losses(index)
    for segment in reversed(index.segments):
        frames = lane.frames_of(index, segment)
        is_lost = any(lost.first <= frames.until < lost.until for lost in losses)
        if frames.until < until and not is_lost:
            raise _missing(lane, frames.until)
        for begin, end in reversed(list(frames.runs(0, len(frames), RUN_BYTES))):
            for first, batch in _run_back(lane, segment, frames, begin, end):
                yield first, batch.slice(0, until - first)
                until = first


def _run_back(
    lane: Lane, segment: int, found: Frames, begin: int, end: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield a run of frames as one batch, with its first offset.

    If a frame is damaged, yield the later frames one by one, newest first, then raise
    CorruptionError.
    """
    batch = None
    with suppress(CorruptionError):
        _, _, batch = lane.read_run(segment, found, begin, end, SCHEMA.names)
    if batch is not None:
        yield found.range_of(begin)[0], batch
        return
    for number in reversed(range(begin, end)):
        header, _, batch = lane.read_run(segment, found, number, number + 1, SCHEMA.names)
        yield header.first, batch


def check_unchanged(lane: Lane, offset: int, now: int, after: int) -> None:
    """Raise DataLossError if the block before ``offset`` has changed since it was read.

    ``now`` is the block's present checksum, and ``after`` is its checksum when it was read. If
    either checksum is 0 (unknown), do nothing.
    """
    if 0 not in (after, now) and now != after:
        raise DataLossError(
            f"{lane.what[0].upper()}{lane.what[1:]} is not the lane that this query has read up to"
            f" offset {offset}: the records before that offset have changed, for example because a"
            " backup was restored and written to; restore the lane as it was, or start the query"
            " with a new checkpoint, and set startingOffsets to the offsets from which to read."
        )


def _missing(lane: Lane, offset: int) -> HeadraceError:
    """Return the error for an offset that is pruned, after the lane's end, or missing."""
    index = lane.index()
    if offset < index.start:
        return DataLossError(
            f"Offset {offset} of {lane.what} was pruned; the lane begins at {index.start}: read "
            "from there."
        )
    end = lane.end(index)
    if offset >= end.until:
        return JournalError(
            f"Offset {offset} of {lane.what} does not exist: the lane ends at {end.until}."
        )
    segment = index.segment_of(offset)
    path = lane.path(offset if segment is None else segment)
    return CorruptionError(
        f"Offset {offset} of {lane.what} is missing ({lane.shown(path)}), although the lane has "
        "later offsets; restore the missing file, or declare the missing offsets lost with "
        "`headrace journal repair`."
    )
