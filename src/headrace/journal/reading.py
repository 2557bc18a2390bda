"""Reading some offsets of a lane, block by block."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from headrace.errors import CorruptionError, DataLossError, HeadraceError, JournalError
from headrace.journal.block import BlockHeader
from headrace.journal.blocks import LaneFiles, Lost
from headrace.journal.columns import as_kafka, stored_columns

_Found = tuple[BlockHeader, pa.RecordBatch] | Lost | None


LaneLoss = Callable[[int, int, str], None]
"""Is called with offsets that are lost (from one to before another), and why; it may raise."""


def read_lane(
    files: LaneFiles,
    start: int,
    until: int,
    columns: Sequence[str],
    on_loss: LaneLoss | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of these offsets, in order, one batch for each block.

    Each block is named by where the one before ends, so nothing is listed unless ``start`` is
    within a block. Offsets that `repair` has declared lost are passed over, once ``on_loss`` has
    been called with them; with it, so is what was pruned.

    Raises:
        DataLossError: Some were pruned before, and there is no ``on_loss``.
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
            stop = min(until, header.until)
            if at < stop:
                rows = batch.slice(at - header.first, stop - at)
                yield as_kafka(rows, files.offsets(at, stop), columns)
        if found is None or stop <= at:
            raise _missing(files, at)
        at = stop


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
    end = files.end(index)
    if offset >= end:
        return JournalError(f"Offset {offset} of {files.what} is not there: it ends at {end}.")
    return CorruptionError(
        f"No file of {files.what} holds offset {offset} ({files.shown(files.path(offset))}), "
        "although it has later ones; put the missing file back, or let `headrace journal repair` "
        "declare those offsets lost."
    )
