"""A power failure at any moment of what a journal does, in each way a file system may show it.

A ``Recorder`` carries out operations and writes them down. The contents that a disk may have after
a crash are then worked out from the first operations of that log, by no more than POSIX promises:

- the bytes that a file had when it was last synced are there, unless it was cut off since: then
  they are there or not; of the bytes written since, all, a part, zeros or none are there;
- a name is there, or gone, if its folder was synced since; of the changes after that, any, in any
  choice: they may reach the disk in another order than they were made.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, count
from pathlib import Path
from typing import Final

import pytest

from headrace.journal.block import Part
from headrace.journal.storage.local import Disk

EVERY_SIXTH_OR_EACH: Final = pytest.mark.parametrize(
    "every", [6, pytest.param(1, marks=pytest.mark.soak)]
)
"""Step between the calls that fail, or the moments of a crash, from a random first one on."""

FOLDER: Final = -1
"""Number to which the name of each folder leads; the name of a file leads to its own."""

MOST_CHANGES: Final = 12
"""Changes of names that are tried in every choice; a journal syncs before there are more."""


class Fast(Disk):
    """Syncs nothing: what a test crashes is worked out, not made."""

    def sync(self, descriptor: int) -> None:
        """Nothing."""

    def sync_path(self, path: Path) -> int:
        """Nothing."""
        return path.stat().st_size

    def sync_folder(self, path: Path) -> None:
        """Nothing."""


class FailingDisk(Fast):
    """Fails in the call of a name, then in others, and writes down which calls there were."""

    def __init__(self) -> None:
        self.fail: str | None = None
        self.then: list[str] = []
        self.error = errno.EIO
        self.calls: list[tuple[str, object]] = []

    def _call(self, name: str, of: object) -> None:
        self.calls.append((name, of))
        if name == self.fail:
            self.fail = self.then.pop(0) if self.then else None
            raise OSError(self.error, os.strerror(self.error))

    def create(self, path: Path) -> int:
        self._call("create", path)
        return super().create(path)

    def open(self, path: Path) -> int:
        self._call("open", path)
        return super().open(path)

    def truncate(self, descriptor: int, size: int) -> None:
        self._call("truncate", size)
        super().truncate(descriptor, size)

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        if self.fail == "write":
            super().write(descriptor, [b"half"])
        self._call("write", descriptor)
        return super().write(descriptor, parts)

    def sync(self, descriptor: int) -> None:
        self._call("sync", descriptor)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self._call("close", descriptor)

    def link(self, path: Path, to: Path) -> None:
        self._call("link", to)
        super().link(path, to)

    def unlink(self, path: Path) -> None:
        self._call("unlink", path)
        super().unlink(path)

    def sync_folder(self, path: Path) -> None:
        self._call("sync_folder", path)


@dataclass(frozen=True)
class Change:
    """A name that came to lead to a file or a folder, or (None) to nothing."""

    path: Path
    target: int | None


@dataclass(frozen=True)
class Write:
    """Bytes of a file, behind those that it has."""

    file: int
    data: bytes


@dataclass(frozen=True)
class Cut:
    """The end of a file's bytes from now on."""

    file: int
    size: int


@dataclass(frozen=True)
class Sync:
    """All of a file's bytes."""

    file: int


@dataclass(frozen=True)
class SyncFolder:
    """All of a folder's names."""

    path: Path


@dataclass(frozen=True)
class Mark:
    """A statement to the outside world at this moment."""

    what: str
    value: object


Operation = Change | Write | Cut | Sync | SyncFolder | Mark


class Recorder(Fast):
    """A disk that writes down every change; its paths are relative to ``base``.

    Several threads may write to it, each to files of its own.

    Args:
        base: A folder; what is in it already is durable.
        told: Statements to the world before.
        fault: The number of the call that fails, from 0 on; None for none.
        between: Called after each operation with the count of those so far.
    """

    def __init__(
        self,
        base: Path,
        *,
        told: Sequence[Mark] = (),
        fault: int | None = None,
        between: Callable[[int], None] | None = None,
    ) -> None:
        self.base = base
        self.log: list[Operation] = []
        self.before = State.found(base)
        self.told = list(told)
        self.calls = 0
        self._fault = fault
        self._between = between
        self._files = dict(self.before.names)
        self._open: dict[int, int] = {}
        self._numbers = count(len(self._files) + 1)

    def mark(self, what: str, value: object) -> None:
        """Write down what the outside world is told."""
        self.log.append(Mark(what, value))

    def create(self, path: Path) -> int:
        self._may_fail()
        descriptor = super().create(path)
        self._open[descriptor] = number = next(self._numbers)
        self._changed(path, number)
        return descriptor

    def open(self, path: Path) -> int:
        self._may_fail()
        descriptor = super().open(path)
        self._open[descriptor] = self._files[path.relative_to(self.base)]
        return descriptor

    def truncate(self, descriptor: int, size: int) -> None:
        self._may_fail()
        super().truncate(descriptor, size)
        self._done(Cut(self._open[descriptor], size))

    def sync_path(self, path: Path) -> int:
        self._may_fail()
        size = super().sync_path(path)
        self._done(Sync(self._files[path.relative_to(self.base)]))
        return size

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        self._may_fail()
        data = b"".join(parts)
        # Never everything at once: the last byte has a call of its own.
        written = super().write(descriptor, [data[:-1] or data])
        self._done(Write(self._open[descriptor], data[:written]))
        return written

    def sync(self, descriptor: int) -> None:
        self._may_fail()
        self._done(Sync(self._open[descriptor]))

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]  # first: another thread may be given the same one next
        super().close(descriptor)
        self._may_fail()

    def link(self, path: Path, to: Path) -> None:
        self._may_fail()
        super().link(path, to)
        self._changed(to, self._files[path.relative_to(self.base)])

    def unlink(self, path: Path) -> None:
        self._may_fail()
        super().unlink(path)
        self._changed(path, None)

    def make_folder(self, path: Path) -> None:
        self._may_fail()
        super().make_folder(path)
        self._changed(path, FOLDER)

    def sync_folder(self, path: Path) -> None:
        if path.is_relative_to(self.base):
            self._may_fail()
            self._done(SyncFolder(path.relative_to(self.base)))

    def _may_fail(self) -> None:
        self.calls += 1
        if self.calls - 1 == self._fault:
            self.mark("failed", self._fault)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _changed(self, path: Path, target: int | None) -> None:
        name = path.relative_to(self.base)
        if target is None:
            del self._files[name]
        else:
            self._files[name] = target
        self._done(Change(name, target))

    def _done(self, operation: Operation) -> None:
        self.log.append(operation)
        if self._between is not None:
            self._between(len(self.log))


@dataclass
class State:
    """Contents that a disk has for certain, and changes that it may have or not."""

    names: dict[Path, int] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    now: dict[int, bytes] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    @classmethod
    def found(cls, base: Path) -> "State":
        """That of a folder that has been there for long."""
        state = cls()
        for number, path in enumerate(sorted(base.rglob("*"))):
            name = path.relative_to(base)
            state.names[name] = FOLDER if path.is_dir() else number
            if not path.is_dir():
                state.data[number] = path.read_bytes()
        return state

    def copy(self) -> "State":
        return State(dict(self.names), dict(self.data), dict(self.now), list(self.changes))

    def apply(self, operation: Operation) -> None:
        """Let one more thing happen."""
        match operation:
            case Change():
                self.changes.append(operation)
            case Write(number, data):
                self.now[number] = self._now(number) + data
            case Cut(number, size):
                self.now[number] = self._now(number)[:size]
            case Sync(number):
                self.data[number] = self._now(number)
                self.now.pop(number, None)
            case SyncFolder(path):
                for change in self.changes:
                    if change.path.parent == path:
                        _apply(change, self.names)
                self.changes = [each for each in self.changes if each.path.parent != path]
            case Mark():
                pass

    def crashes(self) -> Iterator["Files"]:
        """Everything that may be there after a crash at this moment."""
        assert len(self.changes) <= MOST_CHANGES, "too many changes without a sync to try them all"
        choices = chain.from_iterable(
            combinations(self.changes, count) for count in range(len(self.changes) + 1)
        )
        for chosen in choices:
            names = dict(self.names)
            for change in chosen:
                _apply(change, names)
            for fate in _FATES:
                yield self._files(names, fate)

    def _files(self, names: dict[Path, int], fate: "Fate") -> "Files":
        held: dict[Path, bytes | None] = {}
        for path in sorted(names):
            if path.parent == Path() or path.parent in held:
                number = names[path]
                held[path] = None if number == FOLDER else self._left(number, fate)
        return Files(tuple(held.items()))

    def _now(self, number: int) -> bytes:
        """Return a file's bytes, if all that was done to it reached the disk."""
        return self.now.get(number, self.data.get(number, b""))

    def _left(self, number: int, fate: "Fate") -> bytes:
        """Return a file's bytes, if this becomes of what was done to it since the last sync."""
        return fate(self.data.get(number, b""), self._now(number))


Fate = Callable[[bytes, bytes], bytes]
"""What is left of the bytes that a file had when it was synced, and of those it has now."""


def _part(data: bytes, now: bytes, filling: Callable[[int], bytes]) -> bytes:
    """The half of what is new, and something in place of the rest."""
    shorter = min(len(data), len(now))
    same = next((at for at in range(shorter) if data[at] != now[at]), shorter)
    half = same + (len(now) - same) // 2
    return now[:half] + filling(len(now) - half)


_FATES: Final[tuple[Fate, ...]] = (
    lambda data, now: data,
    lambda data, now: now,
    lambda data, now: _part(data, now, lambda _: b""),
    # The length has reached the disk, and some of the bytes or none have not.
    lambda data, now: _part(data, now, bytes),
    lambda data, now: data[: len(now)] + bytes(max(0, len(now) - len(data))),
    lambda data, now: now + data[len(now) :],
)


def _apply(change: Change, names: dict[Path, int]) -> None:
    if change.target is None:
        names.pop(change.path, None)
    else:
        names[change.path] = change.target


@dataclass(frozen=True)
class Files:
    """Contents of a disk: paths and bytes, or None for a folder."""

    held: tuple[tuple[Path, bytes | None], ...]

    def write_to(self, base: Path) -> None:
        """Make it in a new folder."""
        base.mkdir(parents=True)
        for path, data in self.held:
            if data is None:
                (base / path).mkdir()
            else:
                (base / path).write_bytes(data)


def crashes(
    recorder: Recorder, *, since: str = "", within: int | None = None
) -> Iterator[tuple[Files, list[Mark]]]:
    """Each thing that may be there after a crash, with what the world was told before it.

    Args:
        recorder: The record of the operations.
        since: Only crashes after the world was told something of this name.
        within: Only those within so many operations from then on.
    """
    state, marks = recorder.before.copy(), recorder.told
    told: set[tuple[Files, int]] = set()
    past = 0
    for operation in [None, *recorder.log]:
        if isinstance(operation, Mark):
            marks = [*marks, operation]
        elif operation is not None:
            state.apply(operation)
        if since and not any(mark.what == since for mark in marks):
            continue
        past += 1
        if within is not None and past > within:
            return
        for files in state.crashes():
            if (files, len(marks)) not in told:
                told.add((files, len(marks)))
                yield files, marks
