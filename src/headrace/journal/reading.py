"""Reading a lane's records, in the columns of Kafka's source, names and types the same."""

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
"""Receives offsets that were declared lost or pruned, and why; it may raise."""


def check_columns(columns: Sequence[str]) -> None:
    """Raise OptionError where a journal does not have one of these columns."""
    for column in columns:
        if column not in ARROW_SCHEMA.names:
            raise OptionError(
                f"A journal has no column {column!r}; it has {', '.join(ARROW_SCHEMA.names)}."
            )


def _as_kafka(
    batch: pa.RecordBatch, offsets: OffsetRange, columns: Sequence[str]
) -> pa.RecordBatch:
    """Records with the columns asked for; keys, values and headers are shared, not copied."""
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
    """Read these offsets of a lane, as `Journal.read` says; raises OSError besides.

    Small frames in a row are one batch.
    """
    stored = [column for column in columns if column in _STORED]
    at, checksum, finder = offsets.start, after, _Finder(lane, stored, offsets.until)
    while at < offsets.until:
        found = finder.at(at)
        if isinstance(found, Lost):
            stop, checksum = min(offsets.until, found.until), 0
            if on_loss is not None:
                reason = f"declared lost by a repair: {found.reason}"
                on_loss(replace(offsets, start=at, until=stop), reason)
        elif found:
            header, until, batch = found
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
"""The first header of frames in a row, their end, and the records of all."""


class _Finder:
    """Finds the frames that hold an offset; it lists the lane when it must, or what it has ends."""

    def __init__(self, lane: Lane, columns: Sequence[str], until: int) -> None:
        self._lane = lane
        self._columns = columns
        self._until = until
        self._index: LaneIndex | None = None

    def at(self, offset: int) -> _Run | Lost | None:
        """The frames from the one that holds an offset on, or the loss that does."""
        if self._index is None and not self._lane.storage.appends:
            try:
                return self._whole(offset)  # of many blocks in a row none has to be listed
            except (FileNotFoundError, CorruptionError):
                pass  # the offset is within one, or one was declared lost
        try:
            if self._index is not None and (found := self._listed(self._index, offset)):
                return found
        except FileNotFoundError:
            pass  # it was pruned since it was listed
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
        found = self._lane.frames_of(index, segment)
        number = found.holding(offset)
        if number is None:
            return None
        last = found.holding(min(self._until, found.until) - 1)
        _, end = next(found.runs(number, (number if last is None else last) + 1, RUN_BYTES))
        return self._lane.read_run(segment, found, number, end, self._columns)

    def _whole(self, segment: int) -> _Run:
        """The frame of a segment that was put whole."""
        data = self._lane.storage.read(self._lane.path(segment))
        header, batch = self._lane.decoded(segment, segment, data, self._columns)
        return header, header.until, batch


def read_back(lane: Lane) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A lane's records with all they have, the newest first, and where each batch begins.

    Small frames in a row are one batch; offsets that were declared lost are left out. Raises
    OSError, and ``CorruptionError`` at a frame that is damaged.
    """
    index = lane.index()
    until = lane.end(index).until
    losses = lane.losses(index)
    for segment in reversed(index.segments):
        found = lane.frames_of(index, segment)
        is_lost = any(lost.first <= found.until < lost.until for lost in losses)
        if found.until < until and not is_lost:
            raise _missing(lane, found.until)
        for begin, end in reversed(list(found.runs(0, len(found), RUN_BYTES))):
            for first, batch in _run_back(lane, segment, found, begin, end):
                yield first, batch.slice(0, until - first)
                until = first


def _run_back(
    lane: Lane, segment: int, found: Frames, begin: int, end: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The frames of a run: together, or, if one is damaged, those behind it, the newest first."""
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
    """Refuse a lane in which another block is before an offset than was read there.

    The two checksums are those of that block now and then; 0 where it is not known.

    Raises:
        DataLossError: They differ.
    """
    if 0 not in (after, now) and now != after:
        raise DataLossError(
            f"{lane.what[0].upper()}{lane.what[1:]} is not the one that this query has read up to"
            f" offset {offset}: another record is before that offset now, as after a backup that"
            " was put back and written on; put back the lane as it was, or start the query with a"
            " new checkpoint, and with startingOffsets from which on it is to read what the lane"
            " has."
        )


def _missing(lane: Lane, offset: int) -> HeadraceError:
    """Why no frame holds an offset."""
    index = lane.index()
    if offset < index.start:
        return DataLossError(
            f"Offset {offset} of {lane.what} was pruned: it begins at {index.start}; go on from "
            "there."
        )
    end = lane.end(index)
    if offset >= end.until:
        return JournalError(f"Offset {offset} of {lane.what} is not there: it ends at {end.until}.")
    segment = index.segment_of(offset)
    path = lane.path(offset if segment is None else segment)
    return CorruptionError(
        f"No frame of {lane.what} holds offset {offset} ({lane.shown(path)}), although it has "
        "later ones; put the missing file back, or let `headrace journal repair` declare those "
        "offsets lost."
    )
