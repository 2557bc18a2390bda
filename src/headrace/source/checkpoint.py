"""A query's checkpoint as Spark writes it: which batches it has planned, and which committed.

``offsets/N`` is written before batch N is read: a version, a line about the batch, and a line for
each source with the offset where the batch ends (``v2`` puts the source's name and a colon before
it). ``commits/N`` is written once batch N is done. Spark keeps the newest hundred of each.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.core.ranges import OffsetRange
from headrace.errors import SourceError
from headrace.source.stream_offset import StreamOffset

VOID: Final = "-"
"""Placeholder for the offset of a source that has none yet."""

_VERSIONS: Final = ("v1", "v2")


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """End of one batch in one source, as a checkpoint has it.

    Attributes:
        prefix: Text before the offset in its line; empty, but for ``v2``.
        offset: Parsed offset of Kafka's or Headrace's sources; None for other sources.
    """

    prefix: str
    text: str
    offset: StreamOffset | None
    is_ours: bool


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """One file of ``offsets``: its first two lines, and the end of the batch in each source."""

    head: tuple[str, str]
    sources: tuple[SourceOffset, ...]


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """Planned read of one of Headrace's sources in one batch of a checkpoint, by its place."""

    number: int
    source: int
    is_committed: bool
    end: StreamOffset
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The batches of a checkpoint that Spark has kept, and the numbers of those committed."""

    path: Path
    planned: Mapping[int, LoggedBatch]
    committed: frozenset[int]

    @classmethod
    def read(cls, path: str) -> "Checkpoint":
        """Read a checkpoint; a query may run on it meanwhile.

        Raises:
            SourceError: It is no checkpoint in a folder of this machine, or cannot be read.
        """
        folder = _folder(path)
        # First, for committed batches were planned before.
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
            if len(batch.sources) < sources:  # A query has the same ones all its life.
                raise _not_whole(folder, number)
        return cls(folder, planned, committed)

    @property
    def newest(self) -> int:
        """The number of the batch that was planned last."""
        return max(self.planned)

    def reads(self) -> Iterator[PlannedRead]:
        """Yield the reads of Headrace's sources, the earliest first.

        The oldest batch that Spark has kept is left out, for its beginning is not known.
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
    found = before.sources[place].offset if before and place < len(before.sources) else None
    return found or StreamOffset({})


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
        names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    except OSError as error:
        raise SourceError(
            f"The checkpoint's folder {folder} cannot be read: {error.strerror}; let this user read"
            " it."
        ) from error
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _text(file: Path) -> str | None:
    """Return the text of a file; None if Spark has deleted it meanwhile."""
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
    """Whether a file ends before its end: Spark writes no newline there, and a line per source."""
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
        " disk or a broken copy: it ends before the offsets of all sources; restore it from a copy."
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
