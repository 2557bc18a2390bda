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
from headrace.journal.block import BlockHeader
from headrace.journal.lane_files import LaneFiles, LaneIndex, Lost
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
    files: LaneFiles,
    offsets: OffsetRange,
    columns: Sequence[str],
    on_loss: OnLoss | None = None,
    *,
    after: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Read these offsets of a lane, as `Journal.read` says; raises OSError besides.

    Each block is named by where the one before ends, so nothing is listed unless the first offset
    is within a block, or a pack stands in its place.
    """
    stored = [column for column in columns if column in _STORED]
    at, checksum, finder = offsets.start, after, _Finder(files, stored)
    while at < offsets.until:
        found = finder.at(at, within=at == offsets.start)
        if found is None and on_loss is not None and at < (begin := files.index().start):
            stop = min(offsets.until, begin)
            pruned = f"lane {files.lane} now begins at {begin}"
            on_loss(replace(offsets, start=at, until=stop), pruned)
            at = stop
            continue
        if isinstance(found, Lost):
            stop, checksum = min(offsets.until, found.until), 0
            if on_loss is not None and at < stop:
                reason = f"declared lost by a repair: {found.reason}"
                on_loss(replace(offsets, start=at, until=stop), reason)
        elif found is not None:
            header, until, batch = found
            if checksum and (at == offsets.start or header.first < at):
                now = files.checksum_before(header, until, at)
                check_unchanged(files, at, now, checksum)
            checksum = header.checksum
            stop = min(offsets.until, header.until)
            if at < stop:
                rows = batch.slice(at - header.first, stop - at)
                yield _as_kafka(rows, replace(offsets, start=at, until=stop), columns)
        if found is None or stop <= at:
            raise _missing(files, at)
        at = stop


class _Finder:
    """Finds the file of an offset: by its name, or else in the lane's index, listed when needed."""

    def __init__(self, files: LaneFiles, columns: Sequence[str]) -> None:
        self._files = files
        self._columns = columns
        self._packs: LaneIndex | None = None

    def at(self, offset: int, *, within: bool) -> "_File | Lost | None":
        """The file that begins at an offset, or the pack that holds it; ``within``: any that does.

        None where there is none.
        """
        if self._packs is not None and offset in self._packs.packs:  # one behind the other
            with suppress(FileNotFoundError):
                return self._open(offset, self._packs.packs[offset])
        found = self._named(offset)
        if found is not None:
            return found
        index = self._packs = self._files.index()
        first = index.holding(offset)
        if first is None or offset < index.start:
            return None
        if not within and first not in index.packs:
            index = self._packs = self._files.index()  # of a block that was packed since
            if (first := index.holding(offset)) not in index.packs:
                return None
        if first in index.lost:
            found = self._files.lost(first)
        else:
            with suppress(FileNotFoundError):  # it was pruned
                found = self._files.held(index, offset, self._open)
        if isinstance(found, Lost):
            return found if offset < found.until else None
        return found if found is not None and offset < found[0].until else None

    def _open(self, first: int, until: int | None = None) -> "_File":
        header, batch = self._files.block(first, self._columns, until)
        return header, until, batch

    def _named(self, first: int) -> "_File | Lost | None":
        try:
            return self._open(first)
        except FileNotFoundError:
            return _lost_at(self._files, first)
        except CorruptionError:
            # An interrupted repair leaves the block beside the declaration that it is lost.
            if (lost := _lost_at(self._files, first)) is not None:
                return lost
            raise


_File = tuple[BlockHeader, int | None, pa.RecordBatch]
"""The header of a block or a pack, the end that a pack's name has, and its records."""


def read_back(files: LaneFiles) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A lane's records with all they have, the newest first, and where each batch begins.

    One batch for each block or pack; offsets that were declared lost are left out. Raises OSError,
    and ``CorruptionError`` at a block that is damaged.
    """
    index = files.index()
    until = files.end(index).until
    for first in reversed(index.firsts.tolist()):
        if first in index.lost:
            until = min(first, until)
        elif first < until:  # or it was packed since the lane was listed

            def read(first: int, end: int | None) -> tuple[BlockHeader, pa.RecordBatch]:
                return files.block(first, SCHEMA.names, end)

            header, batch = files.held(index, first, read)
            yield header.first, batch.slice(0, until - header.first)
            until = header.first


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


def _lost_at(files: LaneFiles, first: int) -> Lost | None:
    try:
        return files.lost(first)
    except FileNotFoundError:
        return None


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
