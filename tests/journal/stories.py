"""Operations on a journal, and conditions that must hold after a crash at any moment of them."""

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar
from unittest import mock

from tests.journal.samples import numbered, numbers, values_of
from tests.journal.shim import Fast, Files, Mark, Recorder, crashes

from headrace.errors import HeadraceError, JournalError
from headrace.journal import DEFECTS, Journal, verify
from headrace.journal.storage.local import Disk, LocalStorage

T = TypeVar("T")
StorageOf = Callable[[Path, Disk], LocalStorage]


def opened(base: Path, disk: Disk, storage: StorageOf = LocalStorage) -> Journal:
    """The journal of a story, made if need be."""
    return Journal.in_storage(storage(base / "a" / "orders", disk), "orders", create=True)


def append(journal: Journal, recorder: Recorder, *counts: int) -> None:
    """Append blocks of so many records, whose values are their offsets.

    Whatever fails is tried once more, by the same writer where there is one.
    """
    with again(lambda: journal.writer(0)) as writer:
        recorder.mark("opened", writer.end)
        for count in counts:
            end = writer.end
            recorder.mark("tried", end + count)
            try:
                offsets = writer.append(numbered(end, end + count))
            except JournalError:
                end = journal.lane_bounds(0)[1]
                recorder.mark("tried", end + count)
                offsets = writer.append(numbered(end, end + count))
            recorder.mark("acknowledged", offsets.until)


def again(action: Callable[[], T]) -> T:
    """Do it, and once more if it fails."""
    try:
        return action()
    except JournalError:
        return action()


SEGMENT_BYTES: Final = 1_500
"""Two of a story's blocks fit into a segment: it takes another one when it has this size."""


def life(recorder: Recorder, storage: StorageOf = LocalStorage) -> None:
    """A journal is made, written, opened again, written again, pruned and written once more."""
    with mock.patch("headrace.journal.lane_writer.SEGMENT_BYTES", SEGMENT_BYTES):
        _live(recorder, storage)


def _live(recorder: Recorder, storage: StorageOf) -> None:
    journal = again(lambda: opened(recorder.base, recorder, storage))
    recorder.mark("made", journal.id)
    append(journal, recorder, 2, 3)
    append(journal, recorder, 1, 3, 2)
    firsts = again(lambda: journal.segments(0))
    start = firsts[-1].first
    for segment in firsts[1:]:  # a crash may leave the newest of those that go
        recorder.mark("pruning", segment.first)
    recorder.mark("pruned", again(lambda: journal.remove_before(0, start)))
    append(journal, recorder, 4)


@dataclass
class Told:
    """Knowledge of the outside world."""

    journal_id: str | None = None
    acknowledged: int = 0
    tried: int = 0
    seen: int = 0
    starts: set[int] = field(default_factory=lambda: {0})

    @classmethod
    def by(cls, marks: list[Mark]) -> "Told":
        """Return the knowledge that these marks give."""
        told = cls()
        for mark in marks:
            match mark:
                case Mark("made", str(journal_id)):
                    told.journal_id = journal_id
                case Mark("acknowledged", int(until)):
                    told.acknowledged = until
                case Mark("tried", int(until)):
                    told.tried = max(told.tried, until)
                case Mark("seen", int(until)):
                    told.seen = max(told.seen, until)
                case Mark("pruning", int(start)):
                    told.starts.add(start)
                case Mark("pruned", int(start)):
                    told.starts = {start}
                case Mark("opened" | "failed"):
                    pass  # which holds nobody to anything
                case _:
                    raise AssertionError(mark)
        return told


def violations(base: Path, told: Told, disk: Disk) -> Iterator[str]:
    """Yield the violated conditions of a journal that is opened after a crash."""
    try:
        yield from _violations(base, told, disk)
    except HeadraceError as error:
        yield f"{type(error).__name__}: {error}"


def _violations(base: Path, told: Told, disk: Disk) -> Iterator[str]:
    journal = opened(base, disk)
    if told.journal_id not in (None, journal.id):
        yield "it is another journal"
    if wrong := [each for each in verify(journal).findings if each.kind in DEFECTS]:
        yield f"it is said to have {wrong}"
    seen_end = journal.lane_bounds(0)[1]
    if seen_end < told.acknowledged:
        yield f"a reader sees it end at {seen_end}, but {told} was told"
    with journal.writer(0) as writer:
        end = writer.end
        if not max(told.acknowledged, told.seen) <= end <= told.tried:
            yield f"it ends at {end}, but {told} was told"
        writer.append(numbered(end, end + 2))
    start, until = journal.lane_bounds(0)
    if start not in told.starts or until != end + 2:
        yield f"it holds [{start}, {until}), but {told} was told, and 2 were appended at {end}"
    if (values := values_of(journal)) != numbers(range(start, until)):
        yield f"it has {values} at offset {start}"


def explored(
    recorder: Recorder, scratch: Path, *, since: str = "", within: int | None = None
) -> Iterator[str]:
    """Yield the conditions that some crash of the recorded operations violates.

    Args:
        recorder: It has recorded the operations.
        scratch: A folder for what a crash leaves.
        since: Only of crashes after the world was told something of this name.
        within: Only of those within so many operations from then on.
    """
    for files, marks in crashes(recorder, since=since, within=within):
        with on_disk(files, scratch) as base:
            yield from violations(base, Told.by(marks), Fast())


def explored_twice(recorder: Recorder, scratch: Path, every: int) -> Iterator[str]:
    """Yield the conditions that some crash of the recovery from some recorded crash violates.

    The first crash leaves one of many states; every so many-th is taken, from a random one on.
    """
    first = random.randrange(every)
    seen: set[Files] = set()
    for files, marks in crashes(recorder):
        if files in seen:
            continue
        seen.add(files)
        if len(seen) % every != first:
            continue
        with on_disk(files, scratch / "first") as base:
            recovery = Recorder(base, told=marks)
            append(opened(base, recovery), recovery, 2)
        yield from explored(recovery, scratch / "second")


@contextmanager
def on_disk(files: Files, scratch: Path) -> Iterator[Path]:
    """A folder that holds what a crash has left, while it is looked at."""
    base = scratch / "disk"
    files.write_to(base)
    try:
        yield base
    finally:
        shutil.rmtree(base)
