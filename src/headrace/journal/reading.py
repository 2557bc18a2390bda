"""Reading a lane's records, in the columns of Kafka's source, names and types the same."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError, DataLossError, HeadraceError, JournalError, OptionError
from headrace.journal.block import BlockHeader
from headrace.journal.lane_files import LaneFiles, Lost
from headrace.journal.records import HEADERS

ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""Every column there is, in the order of Kafka's source."""

_CREATE_TIME: Final = 0
_STORED: Final = ("key", "value", "timestamp", "headers")


def checked_columns(columns: Sequence[str]) -> list[str]:
    """Columns that a journal has.

    Raises:
        OptionError: It has one of them not.
    """
    for column in columns:
        if column not in ARROW_SCHEMA.names:
            raise OptionError(
                f"A journal has no column {column!r}; it has {', '.join(ARROW_SCHEMA.names)}."
            )
    return list(columns)


def stored_columns(columns: Sequence[str]) -> list[str]:
    """Those that are read from a block; the others follow from where it stands."""
    return [column for column in columns if column in _STORED]


def as_kafka(batch: pa.RecordBatch, offsets: OffsetRange, columns: Sequence[str]) -> pa.RecordBatch:
    """Records with the columns asked for, in the order asked for.

    Keys, values and headers are shared with ``batch``, not copied.

    Args:
        batch: The records, one for each offset, with the columns of ``stored_columns``.
        offsets: Theirs.
        columns: Of ``ARROW_SCHEMA``.
    """
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


_Found = tuple[BlockHeader, pa.RecordBatch] | Lost | None


LaneLoss = Callable[[int, int, str], None]
"""Is called with offsets that are lost (from one to before another), and why; it may raise."""


def read_lane(
    files: LaneFiles,
    start: int,
    until: int,
    columns: Sequence[str],
    on_loss: LaneLoss | None = None,
    *,
    after: int = 0,
) -> Iterator[pa.RecordBatch]:
    """The records of these offsets, in order, one batch for each block.

    Each block is named by where the one before ends, so nothing is listed unless ``start`` is
    within a block. Offsets that `repair` has declared lost are passed over, once ``on_loss`` has
    been called with them; with it, so is what was pruned.

    Args:
        files: The lane's.
        start: The first offset.
        until: The one after the last.
        columns: Those of ``columns.ARROW_SCHEMA`` that are asked for.
        on_loss: See ``LaneLoss``.
        after: The checksum that the block with the record before ``start`` had when that was read;
            0 where it is not known. It costs nothing to compare.

    Raises:
        DataLossError: Some were pruned before, and there is no ``on_loss``; or the record before
            ``start`` is another one by now.
        CorruptionError: Some are not what was written, or there is a gap.
        JournalError: The lane ends before ``until``.
        OSError: The storage fails.
    """
    stored = stored_columns(columns)
    at = start
    while at < until:
        found = _file_at(files, at, stored)
        if found is None and on_loss is not None and at < (begin := files.index().start):
            stop = min(until, begin)
            on_loss(at, stop, f"lane {files.lane} now begins at {begin}")
            at = stop
            continue
        if found is None and at == start:
            found = _file_at(files, _first_of_file_with(files, at), stored)
        if isinstance(found, Lost):
            stop = min(until, found.until)
            if on_loss is not None and at < stop:
                on_loss(at, stop, f"declared lost by a repair: {found.reason}")
        elif found is not None:
            header, batch = found
            if at == start:
                _hold_to(files, header, start, after)
            stop = min(until, header.until)
            if at < stop:
                rows = batch.slice(at - header.first, stop - at)
                yield as_kafka(rows, files.offsets(at, stop), columns)
        if found is None or stop <= at:
            raise _missing(files, at)
        at = stop


def hold_to(files: LaneFiles, offset: int, now: int, after: int) -> None:
    """Refuse a lane in which another block is before an offset than was read there, by checksums.

    Either may be 0: not known.

    Raises:
        DataLossError: They differ.
    """
    if 0 not in (after, now) and now != after:
        raise DataLossError(
            f"{files.what[0].upper()}{files.what[1:]} is not the one that this query has read up to"
            f" offset {offset}: another record is before that offset now, as after a backup that"
            " was put back and written on; put back the lane as it was, or start the query with a"
            " new checkpoint, and with startingOffsets from which on it is to read what the lane"
            " has."
        )


def _hold_to(files: LaneFiles, header: BlockHeader, start: int, after: int) -> None:
    """Refuse a lane in which another record is before an offset than was read there.

    A block that begins there has the checksum of the one before; 0 where there was none to tell,
    as after a loss.
    """
    now = header.previous if header.first == start else header.checksum
    hold_to(files, start, now, after)


def _file_at(files: LaneFiles, first: int, stored: list[str]) -> _Found:
    """The file that begins at an offset, if one does."""
    try:
        return files.block(first, stored)
    except FileNotFoundError:
        return _lost_at(files, first)
    except CorruptionError:
        # A repair that a crash has cut short leaves the block beside the word that it is lost.
        if (lost := _lost_at(files, first)) is not None:
            return lost
        raise


def _lost_at(files: LaneFiles, first: int) -> Lost | None:
    try:
        return files.lost(first)
    except FileNotFoundError:
        return None


def _first_of_file_with(files: LaneFiles, offset: int) -> int:
    index = files.index()
    first = index.holding(offset)
    if offset < index.start or first is None:
        raise _missing(files, offset)
    return first


def _missing(files: LaneFiles, offset: int) -> HeadraceError:
    """Why no file holds an offset."""
    index = files.index()
    if offset < index.start:
        return DataLossError(
            f"Offset {offset} of {files.what} was pruned: it begins at {index.start}; go on from "
            "there."
        )
    end = files.ending(index)
    if end.until <= offset < end.reached:
        return CorruptionError(files.without_name(end.until, end.reached))
    if offset >= end.until:
        return JournalError(
            f"Offset {offset} of {files.what} is not there: it ends at {end.until}."
        )
    return CorruptionError(
        f"No file of {files.what} holds offset {offset} ({files.shown(files.path(offset))}), "
        "although it has later ones; put the missing file back, or let `headrace journal repair` "
        "declare those offsets lost."
    )
