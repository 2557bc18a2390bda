"""Reader of a query's checkpoint in Spark's format: the planned and the committed batches.

Spark writes ``offsets/N`` before it reads batch N. The file has a line with a version, a line with
metadata of the batch, and a line per source with the offset where the batch ends. In version
``v2``, the source's name and a colon precede the offset. Spark writes ``commits/N`` after batch N.
It keeps the newest 100 files in each folder.

The native connector accepts only topics, partitions and offsets. So `export` writes a copy of the
checkpoint without Headrace's keys. A query can return to the native connector with this copy.
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
"""Text that Spark writes in place of an offset for a source that has no offset yet."""

_VERSIONS: Final = ("v1", "v2")


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Offset at which one batch ends in one source of the query.

    Attributes:
        prefix: Text before the offset in its line: in ``v2`` the source's name and a colon, in
            ``v1`` empty.
        offset: Parsed offset of a Kafka source or of a Headrace source; None for other sources.
    """

    prefix: str
    text: str
    offset: StreamOffset | None
    is_ours: bool


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """Content of one ``offsets`` file: its first two lines, and the batch's end in each source."""

    head: tuple[str, str]
    sources: tuple[SourceOffset, ...]


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """Ranges that one batch of a checkpoint reads from one of Headrace's sources."""

    number: int
    source: int
    """Index of the source in the query."""
    is_committed: bool
    end: StreamOffset
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Content of a checkpoint: the planned batches that Spark keeps, and the commits' numbers."""

    path: Path
    planned: Mapping[int, LoggedBatch]
    committed: frozenset[int]

    @classmethod
    def read(cls, path: str) -> "Checkpoint":
        """Read the checkpoint in a folder, even while a query writes to it.

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
                f"{folder} is not the checkpoint of a query that has planned a batch; name the"
                " folder that is the query's checkpointLocation, or a copy of it."
            )
        sources = max(len(batch.sources) for batch in planned.values())
        for number, batch in planned.items():
            if len(batch.sources) < sources:  # The sources of a query never change.
                raise _not_whole(folder, number)
        return cls(folder, planned, committed)

    @property
    def newest(self) -> int:
        """Number of the newest planned batch."""
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
            f"The checkpoint {path} is not in a folder of this machine; copy it to a local folder,"
            " for example with 'hadoop fs -get', and name that folder."
        )
    folder = Path(name)
    if not (folder / "offsets").is_dir():
        raise SourceError(
            f"{folder} is not the checkpoint of a streaming query, because it has no folder"
            " 'offsets'; name the folder that is the query's checkpointLocation."
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
    """Return the text of a checkpoint's file, or None if Spark has deleted the file."""
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
            f"The file {folder / 'offsets' / str(number)} has a format that this version of"
            f" Headrace does not know (it begins with {lines[0][:20]!r}; known is"
            f" {' or '.join(_VERSIONS)}); use a newer Headrace."
        )
    sources = [_source(line, named=lines[0] == "v2") for line in lines[2:]]
    return LoggedBatch((lines[0], lines[1]), tuple(sources))


def _is_cut(lines: Sequence[str]) -> bool:
    """Return whether the lines of an ``offsets`` file are incomplete, as after a crash.

    Spark writes one line per source, and no newline after the last line.
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
        f"The checkpoint's file {folder / 'offsets' / str(number)} is incomplete, for example after"
        " a full disk, a power failure or an interrupted copy: it lacks the offsets of a source;"
        " restore it from a copy, or delete the checkpoint: a query with a gate then continues"
        " from the ledger's position."
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

    With ``rerun``, an uncommitted batch stays planned in the copy: the native source reads its
    ranges again, under the same number. The folder ``to`` appears only when the copy is complete.
    An error leaves no files behind.
    """
    pending = _pending(checkpoint, rerun=rerun)
    if to.exists():
        raise SourceError(
            f"The folder {to} of --to exists already; name a folder that does not exist."
        )
    if to.resolve().is_relative_to(checkpoint.path.resolve()):
        raise SourceError(
            f"The folder {to} of --to is within the checkpoint; name a folder outside of the"
            " checkpoint."
        )
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as folder:
            copy = Path(folder) / "checkpoint"
            shutil.copytree(checkpoint.path, copy)
            _rewrite(checkpoint, copy, pending)
            if Checkpoint.read(str(checkpoint.path)) != checkpoint:
                raise SourceError(
                    f"A query runs on the checkpoint {checkpoint.path}; stop the query before the"
                    " export."
                )
            copy.rename(to)
    except (OSError, shutil.Error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise SourceError(
            f"The checkpoint {checkpoint.path} cannot be copied to {to}: {reason}; let this user"
            " read the checkpoint and write to the folder above the copy."
        ) from error


def _pending(checkpoint: Checkpoint, *, rerun: bool) -> Mapping[int, PlannedRead]:
    """Return the newest batch's reads by source index; empty if the batch is committed."""
    _refuse_what_is_no_topic(checkpoint)
    newest = checkpoint.newest
    if newest in checkpoint.committed:
        return {}
    pending = {read.source: read for read in checkpoint.reads() if read.number == newest}
    if not pending:
        raise SourceError(
            f"Batch {newest} of the checkpoint {checkpoint.path} is planned but not committed, and"
            " Spark has deleted the batch before it, so the start of the batch is unknown; start"
            " the query with Headrace once more, so that the batch ends."
        )
    if not rerun and any(read.ranges for read in pending.values()):
        raise SourceError(
            f"Batch {newest} of the checkpoint {checkpoint.path} is planned but not committed, and"
            " its handler may have run or not; start the query with Headrace once more with"
            " trigger(availableNow=True), so that the batch ends, or set --rerun, so that the"
            " native source runs the same ranges again, under the same number."
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
            f"The newest batch of the checkpoint {checkpoint.path} has no offset of a Headrace"
            " source; the native source can use the checkpoint without an export."
        )
    for place, offset in ours:
        if offset.replay:
            raise SourceError(
                f"The checkpoint {checkpoint.path} is of a query that runs failed batches again,"
                " not of the stream; export the checkpoint of the stream."
            )
        journals = [name for name, id_ in offset.topic_ids.items() if _JOURNAL_ID.fullmatch(id_)]
        if journals:
            raise SourceError(
                f"Source {place} of the checkpoint {checkpoint.path} reads the journal"
                f" {journals[0]!r}, for which Spark has no native source, so the checkpoint cannot"
                " be exported."
            )


def _begins(checkpoint: Checkpoint, pending: PlannedRead) -> Positions:
    """Return the offset at which a planned read begins in each of its partitions."""
    before = checkpoint.planned.get(pending.number - 1)
    start = before.sources[pending.source].offset if before else None
    positions = start.positions if start else {}
    end = pending.end
    return {tp: end.begins.get(tp, positions.get(tp, 0)) for tp in end.positions}


def _rewrite(checkpoint: Checkpoint, copy: Path, pending: Mapping[int, PlannedRead]) -> None:
    """Rewrite the offsets of Headrace's sources in a copy, without Headrace's keys."""
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
