"""Reading a lane's records, in the columns of Kafka's source, names and types the same."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError, DataLossError, HeadraceError, JournalError, OptionError
from headrace.journal.block import BlockHeader
from headrace.journal.lane_files import LaneFiles, Lost
from headrace.journal.packs import Pack, PackReader
from headrace.journal.records import SCHEMA
from headrace.source.log import ARROW_SCHEMA

_CREATE_TIME: Final = 0
_STORED: Final = ("key", "value", "timestamp", "headers")

_BLOCKS_IN_A_ROW: Final = 4
"""After so many it looks for a pack. The writer alone decides which blocks are in one: by the size
of all columns in memory, which a reader of some of them cannot know."""

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
    files: LaneFiles,
    offsets: OffsetRange,
    columns: Sequence[str],
    on_loss: OnLoss | None = None,
    *,
    after: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Read these offsets of a lane, as `Journal.read` says; raises OSError besides.

    Each block is named by where the one before ends, so nothing is listed unless the first offset
    is within a block. After some blocks in a row it looks for a pack that goes on there.
    """
    stored = [column for column in columns if column in _STORED]
    at = offsets.start
    packs, blocks, checksum = PackReader(files), 0, 0
    while at < offsets.until:
        if blocks == _BLOCKS_IN_A_ROW:
            blocks = 0
            for pack, batch in _packed(packs, at, offsets.until, checksum, stored):
                stop = min(offsets.until, pack.header.until)
                rows = batch.slice(at - pack.header.first, stop - at)
                yield _as_kafka(rows, replace(offsets, start=at, until=stop), columns)
                at = stop
            continue
        found = _file_at(files, at, stored)
        if found is None and on_loss is not None and at < (begin := files.index().start):
            stop = min(offsets.until, begin)
            pruned = f"lane {files.lane} now begins at {begin}"
            on_loss(replace(offsets, start=at, until=stop), pruned)
            at = stop
            continue
        if found is None and at == offsets.start:
            found = _file_at(files, _first_of_file_with(files, at), stored)
        if isinstance(found, Lost):
            stop = min(offsets.until, found.until)
            if on_loss is not None and at < stop:
                reason = f"declared lost by a repair: {found.reason}"
                on_loss(replace(offsets, start=at, until=stop), reason)
        elif found is not None:
            header, batch = found
            checksum = header.checksum
            blocks += 1
            if at == offsets.start:
                # If the block begins there, its header has the checksum of the previous block.
                now = header.previous if header.first == at else header.checksum
                check_unchanged(files, at, now, after)
            stop = min(offsets.until, header.until)
            if at < stop:
                rows = batch.slice(at - header.first, stop - at)
                yield _as_kafka(rows, replace(offsets, start=at, until=stop), columns)
        if found is None or stop <= at:
            raise _missing(files, at)
        at = stop


def read_back(files: LaneFiles) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A lane's records with all they have, the newest first, and where each batch begins.

    One batch for each block or pack; offsets that were declared lost are left out. Raises OSError,
    and ``CorruptionError`` at a block that is damaged.
    """
    index, packs = files.index(), PackReader(files)
    until = files.end(index).until
    for first in reversed(index.firsts.tolist()):
        if first >= until:
            continue  # it was in a pack
        if first in index.lost:
            until = first
        elif (found := packs.ending_at(until, SCHEMA.names)) is not None:
            until = found[0].header.first
            yield until, found[1]
        else:
            until = first
            yield first, files.block(first, SCHEMA.names)[1]


def _packed(
    packs: PackReader, at: int, until: int, checksum: int, columns: list[str]
) -> Iterator[tuple[Pack, pa.RecordBatch]]:
    """The packs that go on, one behind the other, at an offset behind a block with a checksum."""
    while at < until and (found := packs.after(at, checksum, columns)) is not None:
        yield found
        at, checksum = found[0].header.until, found[0].checksum


def check_unchanged(files: LaneFiles, offset: int, now: int, after: int) -> None:
    """Refuse a lane in which another block is before an offset than was read there.

    The two checksums are those of that block now and then; 0 where it is not known.

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


def _file_at(
    files: LaneFiles, first: int, stored: list[str]
) -> tuple[BlockHeader, pa.RecordBatch] | Lost | None:
    """The file that begins at an offset, if one does."""
    try:
        return files.block(first, stored)
    except FileNotFoundError:
        return _lost_at(files, first)
    except CorruptionError:
        # An interrupted repair leaves the block beside the declaration that it is lost.
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
    end = files.end(index)
    if end.until <= offset < end.spare_until:
        return CorruptionError(files.without_name(end))
    if offset >= end.until:
        return JournalError(
            f"Offset {offset} of {files.what} is not there: it ends at {end.until}."
        )
    return CorruptionError(
        f"No file of {files.what} holds offset {offset} ({files.shown(files.path(offset))}), "
        "although it has later ones; put the missing file back, or let `headrace journal repair` "
        "declare those offsets lost."
    )
