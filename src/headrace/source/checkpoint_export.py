"""The way back: a copy of a checkpoint that Spark's own Kafka source goes on from.

The native source reads an offset as topics, partitions and numbers, and refuses any key besides, so
Headrace's keys cannot stay. Only the offsets of Headrace's sources are rewritten; all other files
of the checkpoint (commits, state, other sources' offsets) are copied as they are. The original is
never changed.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.core.ranges import Positions, nested
from headrace.errors import SourceError
from headrace.source.checkpoint import Checkpoint, LoggedBatch, PlannedRead, SourceOffset
from headrace.source.stream_offset import StreamOffset

_JOURNAL_ID: Final = re.compile(r"[0-9a-f]{32}")

# Header of the log of a source's first offsets, as the native connector writes it.
_FIRST_OFFSETS: Final = "\0v1\n"


def starting_offsets(checkpoint: Checkpoint, *, rerun: bool) -> list[dict[str, dict[str, int]]]:
    """The native source's option ``startingOffsets``, for each of Headrace's sources of a query.

    With ``rerun``, a batch that is planned and not committed is read again.
    """
    pending = _pending(checkpoint, rerun=rerun)
    found = []
    for place, source in enumerate(checkpoint.planned[checkpoint.newest].sources):
        if source.is_ours and source.offset is not None:
            begins = _begins(checkpoint, pending[place]) if place in pending else None
            found.append(nested(source.offset.positions if begins is None else begins))
    return found


def export(checkpoint: Checkpoint, to: Path, *, rerun: bool) -> None:
    """Write a copy of a stopped query's checkpoint that the native source goes on from.

    A batch that is planned and not committed is, with ``rerun``, planned in the copy as well: the
    native source reads just the same ranges, under the same number. The copy appears when all of it
    is written; after an error nothing is left of it.
    """
    pending = _pending(checkpoint, rerun=rerun)
    if to.exists():
        raise SourceError(f"The folder {to} of --to is there already; name one that is not.")
    if to.resolve().is_relative_to(checkpoint.path.resolve()):
        raise SourceError(
            f"The folder {to} of --to is within the checkpoint; name one that is outside of it."
        )
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as folder:
            copy = Path(folder) / "checkpoint"
            shutil.copytree(checkpoint.path, copy)
            _rewrite(checkpoint, copy, pending)
            if Checkpoint.read(str(checkpoint.path)) != checkpoint:
                raise SourceError(
                    f"A query runs on the checkpoint {checkpoint.path}; stop it, and export then."
                )
            copy.rename(to)
    except (OSError, shutil.Error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise SourceError(
            f"The checkpoint {checkpoint.path} cannot be copied to {to}: {reason}; let this user"
            " read the one and write beside the other."
        ) from error


def _pending(checkpoint: Checkpoint, *, rerun: bool) -> Mapping[int, PlannedRead]:
    """Return the newest batch's reads, by source, if it is not committed."""
    _refuse_what_is_no_topic(checkpoint)
    newest = checkpoint.newest
    if newest in checkpoint.committed:
        return {}
    pending = {each.source: each for each in checkpoint.reads() if each.number == newest}
    if not pending:
        raise SourceError(
            f"Batch {newest} of the checkpoint {checkpoint.path} is planned and not committed, and"
            " the one before it is not there, so nobody knows where it began; start the query with"
            " Headrace once more, so that the batch ends."
        )
    if not rerun and any(each.ranges for each in pending.values()):
        raise SourceError(
            f"Batch {newest} of the checkpoint {checkpoint.path} is planned and not committed, and"
            " its handler may have run or not; start the query with Headrace once more with"
            " trigger(availableNow=True), so that it ends, or have the native source run the same"
            " ranges again, under the same number, with --rerun."
        )
    return pending


def _refuse_what_is_no_topic(checkpoint: Checkpoint) -> None:
    ours = [
        (place, source.offset)
        for place, source in enumerate(checkpoint.planned[checkpoint.newest].sources)
        if source.is_ours and source.offset is not None
    ]
    if not ours:
        raise SourceError(
            f"The newest batch of the checkpoint {checkpoint.path} has no offset of Headrace's; the"
            " native source takes the checkpoint as it is."
        )
    for place, offset in ours:
        if offset.replay:
            raise SourceError(
                f"The checkpoint {checkpoint.path} is of a query with which Headrace reads batches"
                " once more; export that of the stream itself."
            )
        journals = [name for name, id_ in offset.topic_ids.items() if _JOURNAL_ID.fullmatch(id_)]
        if journals:
            raise SourceError(
                f"Source {place} of the checkpoint {checkpoint.path} reads the journal"
                f" {journals[0]!r}, which no source of Spark's own can read, so it cannot be"
                " exported."
            )


def _begins(checkpoint: Checkpoint, pending: PlannedRead) -> Positions:
    """Return the beginning of a batch in each partition of its end."""
    before = checkpoint.planned.get(pending.number - 1)
    start = before.sources[pending.source].offset if before else None
    positions = start.positions if start else {}
    end = pending.end
    return {tp: end.begins.get(tp, positions.get(tp, 0)) for tp in end.positions}


def _rewrite(checkpoint: Checkpoint, copy: Path, pending: Mapping[int, PlannedRead]) -> None:
    """Write the offsets of Headrace's sources into a copy, without Headrace's keys."""
    planned = dict(checkpoint.planned)
    for place, read in pending.items():
        begins = _begins(checkpoint, read)
        before = planned.get(read.number - 1)
        if before is None:
            prefix = planned[read.number].sources[place].prefix.removesuffix(":")
            first = copy / "sources" / (prefix or str(place)) / "0"
            first.parent.mkdir(parents=True, exist_ok=True)
            _write(first, _FIRST_OFFSETS + _native(begins))
        else:
            # The batch began elsewhere than at the previous one's end; the native source would not.
            sources = list(before.sources)
            moved = StreamOffset(begins)
            sources[place] = replace(sources[place], offset=moved, is_ours=True)
            planned[read.number - 1] = replace(before, sources=tuple(sources))
    for number, batch in planned.items():
        if any(source.is_ours for source in batch.sources):
            _write(copy / "offsets" / str(number), "\n".join(_lines(batch)))


def _lines(batch: LoggedBatch) -> Iterator[str]:
    yield from batch.head
    for source in batch.sources:
        yield source.prefix + _text_of(source)


def _text_of(source: SourceOffset) -> str:
    if source.is_ours and source.offset is not None:
        return _native(source.offset.positions)
    return source.text


def _native(positions: Positions) -> str:
    return json.dumps(nested(positions), separators=(",", ":"))


def _write(file: Path, text: str) -> None:
    """Write a file, and delete Hadoop's checksum of its previous content."""
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    file.write_text(text, encoding="utf-8")
