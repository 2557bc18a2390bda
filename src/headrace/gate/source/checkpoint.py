"""A query's checkpoint as Spark writes it: its planned batches, and its committed batches.

``offsets/N`` is written before batch N is read: a version, a line about the batch, and a line for
each source with the offset where the batch ends (``v2`` prefixes the source's name and a colon).
``commits/N`` is written after batch N. Spark keeps the newest hundred of each.

The native connector reads only topics, partitions and numbers. So a query returns to it on a copy
of the checkpoint without Headrace's keys.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from headrace.core.ranges import OffsetRange, Positions, nested
from headrace.errors import SourceError
from headrace.gate.source.stream_offset import StreamOffset

VOID: Final = "-"
"""Placeholder for the offset of a source without an offset yet."""

_VERSIONS: Final = ("v1", "v2")


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """End of one batch in one source of a checkpoint.

    Attributes:
        prefix: Text before the offset in its line; empty except in ``v2``.
        offset: Parsed offset of Kafka's or Headrace's sources; None for other sources.
    """

    prefix: str
    text: str
    offset: StreamOffset | None
    is_ours: bool


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """One file of ``offsets``: its first two lines, and the batch's end in each source."""

    head: tuple[str, str]
    sources: tuple[SourceOffset, ...]


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """Planned read of one of Headrace's sources in one batch of a checkpoint."""

    number: int
    source: int
    """Index of the source in the query."""
    is_committed: bool
    end: StreamOffset
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The batches of a checkpoint that Spark has kept, and the numbers of committed batches."""

    path: Path
    planned: Mapping[int, LoggedBatch]
    committed: frozenset[int]

    @classmethod
    def read(cls, path: str) -> "Checkpoint":
        """Read a checkpoint; a query may use it meanwhile.

        Raises:
            SourceError: The path is not a checkpoint in a folder of this machine, or cannot be
                read.
        """
        folder = _folder(path)
        # Read the commits first: a running query plans each batch before it commits the batch.
        committed = frozenset(_numbers(folder / "commits"))
        planned = {}
        for number in _numbers(folder / "offsets"):
            text = _text(folder / "offsets" / str(number))
            if text is not None:
                planned[number] = _logged(folder, number, text)
        if not planned:
            raise SourceError(
                f"{folder} is no checkpoint of a query that has planned a batch; name the folder"
                " that is the query's checkpointLocation, or a copy of it."
            )
        sources = max(len(batch.sources) for batch in planned.values())
        for number, batch in planned.items():
            if len(batch.sources) < sources:  # The sources of a query never change.
                raise _not_whole(folder, number)
        return cls(folder, planned, committed)

    @property
    def newest(self) -> int:
        """The number of the newest planned batch."""
        return max(self.planned)

    def reads(self) -> Iterator[PlannedRead]:
        """Yield the reads of Headrace's sources, the earliest first.

        The oldest batch that Spark has kept is left out, because its start is not known.
        """
        for number in sorted(self.planned):
            before = self.planned.get(number - 1)
            if before is None and number > 0:
                continue
            for place, source in enumerate(self.planned[number].sources):
                if source.is_ours and source.offset is not None:
                    start = _start(before, place)
                    yield PlannedRead(
                        number,
                        place,
                        number in self.committed,
                        source.offset,
                        tuple(source.offset.ranges_from(start)),
                    )


def _start(before: LoggedBatch | None, place: int) -> StreamOffset:
    offset = before.sources[place].offset if before and place < len(before.sources) else None
    return offset or StreamOffset({})


def _folder(path: str) -> Path:
    name = path.removeprefix("file://") if path.startswith("file:///") else path
    name = name.removeprefix("file:")
    if "://" in name:
        raise SourceError(
            f"The checkpoint {path} is not in a folder of this machine; copy it to one, for example"
            " with 'hadoop fs -get', and name that."
        )
    folder = Path(name)
    if not (folder / "offsets").is_dir():
        raise SourceError(
            f"{folder} is no checkpoint of a streaming query, for it has no folder 'offsets'; name"
            " the folder that is the query's checkpointLocation."
        )
    return folder


def _numbers(folder: Path) -> list[int]:
    try:
        names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise SourceError(
            f"The checkpoint's folder {folder} cannot be read: {error.strerror}; let this user read"
            " it."
        ) from error
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _text(file: Path) -> str | None:
    """Return the text of a file; None if Spark has deleted the file meanwhile."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SourceError(
            f"The checkpoint's file {file} cannot be read: {reason}; restore it from a copy."
        ) from error


def _logged(folder: Path, number: int, text: str) -> LoggedBatch:
    lines = text.split("\n")
    if _is_cut(lines):
        raise _not_whole(folder, number)
    if lines[0] not in _VERSIONS:
        raise SourceError(
            f"The file {folder / 'offsets' / str(number)} is not of a form that this Headrace knows"
            f" (it begins with {lines[0][:20]!r}, and {' or '.join(_VERSIONS)} is known); use a"
            " newer one."
        )
    sources = [_source(line, named=lines[0] == "v2") for line in lines[2:]]
    return LoggedBatch((lines[0], lines[1]), tuple(sources))


def _is_cut(lines: Sequence[str]) -> bool:
    """Return whether a file is incomplete.

    Spark writes a line per source, without a newline at the end.
    """
    if any("\0" in line for line in lines):  # A power failure leaves such a file (SPARK-38033).
        return True
    if len(lines) == 1:
        return any(version.startswith(lines[0]) for version in _VERSIONS)
    if lines[0] not in _VERSIONS:
        return False
    _, colon, named = lines[-1].partition(":")
    last = named if lines[0] == "v2" else lines[-1]
    if len(lines) == 2 or not last or (lines[0] == "v2" and not colon):
        return True
    return last.startswith("{") and not _is_json(last)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _not_whole(folder: Path, number: int) -> SourceError:
    return SourceError(
        f"The checkpoint's file {folder / 'offsets' / str(number)} is not whole, as after a full"
        " disk, a power failure or a broken copy: it lacks the offsets of a source;"
        " restore it from a copy, or delete the checkpoint: with a gate the ledger knows where to"
        " go on."
    )


def _source(line: str, *, named: bool) -> SourceOffset:
    name, colon, text = line.partition(":") if named else ("", "", line)
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return SourceOffset(name + colon, text, None, is_ours=False)
    is_ours = any(key.startswith("@") for key in values)
    try:
        return SourceOffset(name + colon, text, StreamOffset.from_json(values), is_ours)
    except SourceError:
        if is_ours:
            raise
        return SourceOffset(name + colon, text, None, is_ours=False)


_JOURNAL_ID: Final = re.compile(r"[0-9a-f]{32}")

# Header of the log of a source's first offsets, as the native connector writes it.
_FIRST_OFFSETS: Final = "\0v1\n"


def export(checkpoint: Checkpoint, to: Path, *, rerun: bool) -> None:
    """Write a copy of a stopped query's checkpoint from which the native source can continue.

    The native source accepts only topics as keys, so Headrace's keys are removed. Only the offsets
    of Headrace's sources are rewritten; all other files (commits, state, other sources' offsets)
    are copied unchanged. The original is never changed.

    With ``rerun``, an uncommitted planned batch stays planned in the copy: the native source reads
    the same ranges, under the same number. The copy appears once it is complete; after an error,
    nothing of it remains.
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
    """Return the newest batch's reads, by source, if the batch is not committed."""
    _refuse_what_is_no_topic(checkpoint)
    newest = checkpoint.newest
    if newest in checkpoint.committed:
        return {}
    pending = {read.source: read for read in checkpoint.reads() if read.number == newest}
    if not pending:
        raise SourceError(
            f"Batch {newest} of the checkpoint {checkpoint.path} is planned and not committed, and"
            " the one before it is not there, so nobody knows where it began; start the query with"
            " Headrace once more, so that the batch ends."
        )
    if not rerun and any(read.ranges for read in pending.values()):
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
    """Return the start of a batch in each partition of its end."""
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
            # Move the previous batch's end to the batch's start, where the native source begins.
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
