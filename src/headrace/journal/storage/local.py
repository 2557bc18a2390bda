"""A journal in a directory of this machine, or of anything that is mounted like one.

A file is written under a temporary name and synced; then it gets its name, by a link, which fails
where the name is taken; then the directory is synced. Only after that is it durable. A reader may
see the name before: so a listing syncs the directory too, and blocks that a reader has planned
stay.
"""

import fcntl
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace.errors import LaneTakenError
from headrace.journal.block import Part
from headrace.journal.names import LOCK, temporary_name
from headrace.journal.storage import Entry, Storage

_MOST_PARTS: Final = 512  # POSIX lets a system take no more than 1024 at once


_SECTOR_BYTES: Final = 512
"""The unit of `st_blocks` (POSIX), whatever a file system's blocks are."""


class Disk:
    """The machine's file system, one system call a method; every method raises ``OSError``.

    It is a class of its own so that tests can record, fail and replay a journal's operations.
    """

    def create(self, path: Path) -> int:
        """A new file's descriptor; its name must be free."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        """Write some of the bytes of some of the parts, at least one; answers how many."""
        return os.writev(descriptor, parts[:_MOST_PARTS])

    def sync(self, descriptor: int) -> None:
        """Make written bytes durable."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Give a descriptor back; it is gone even if this fails."""
        os.close(descriptor)

    def link(self, path: Path, to: Path) -> None:
        """Give a file a second name, which must be free."""
        os.link(path, to)

    def unlink(self, path: Path) -> None:
        """Take a name from a file."""
        path.unlink()

    def make_folder(self, path: Path) -> None:
        """Make a folder, which must not be there."""
        path.mkdir()

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable, and their absence."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_all(disk: Disk, descriptor: int, parts: Sequence[Part]) -> None:
    """Write all of it, in as many calls as the file system needs."""
    left = [view for part in parts if (view := memoryview(part)).nbytes]
    while left:
        written = disk.write(descriptor, left)
        if written <= 0:
            raise OSError(f"{written} bytes of a file were written, and no reason was given")
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]


_MOST_OWNER_BYTES: Final = 200


class LocalStorage(Storage):
    """A directory, the journal's own; ``disk`` changes it."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self._root = Path(os.path.abspath(root))  # noqa: PTH100  (links in it are kept)
        self._disk = disk or Disk()

    @property
    def url(self) -> str:
        return str(self._root)

    def create(self) -> None:
        """Make the root and its parents, durably."""
        missing = [path for path in (self._root, *self._root.parents) if not path.exists()]
        for path in reversed(missing):
            self._make(path)
        for path in (self._root, *self._root.parents):
            try:
                self._disk.sync_folder(path)
            except PermissionError:
                break  # whoever may not even list a folder has made none in it

    def create_folder(self, folder: str) -> None:
        """Make a folder, durably, also where a crash has left it undurable."""
        path = self._root / folder
        self._make(path)
        self._disk.sync_folder(path.parent)

    def _make(self, path: Path) -> None:
        try:
            self._disk.make_folder(path)
        except FileExistsError:
            if not path.is_dir():
                raise

    def folders(self) -> list[str]:
        """The names of the root's folders; listed means durable."""
        try:
            with os.scandir(self._root) as found:
                folders = [entry.name for entry in found if entry.is_dir()]
        except FileNotFoundError:
            return []
        if folders:
            self._disk.sync_folder(self._root)
        return folders

    def names(self, folder: str) -> list[str]:
        """The names in a folder; listed means durable."""
        path = self._root / folder
        try:
            names = os.listdir(path)  # noqa: PTH208  (ten times as fast as a Path for each)
        except FileNotFoundError:
            return []
        self._disk.sync_folder(path)
        return names

    def entries(self, folder: str) -> list[Entry]:
        """The names with sizes and times; a file that is removed meanwhile is left out."""
        path = self._root / folder
        found: list[Entry] = []
        try:
            with os.scandir(path) as listing:
                for entry in listing:
                    if entry.is_dir():
                        continue
                    try:
                        status = entry.stat()
                    except FileNotFoundError:
                        continue
                    made_ms = status.st_mtime_ns // 1_000_000
                    allocated = status.st_blocks * _SECTOR_BYTES
                    found.append(Entry(entry.name, status.st_size, made_ms, allocated))
        except FileNotFoundError:
            return []
        self._disk.sync_folder(path)
        return found

    def read(self, path: str) -> pa.Buffer:
        """A file, mapped into memory."""
        where = self._root / path
        if where.stat().st_size == 0:  # which cannot be mapped
            return pa.py_buffer(b"")
        with pa.memory_map(str(where)) as mapped:
            return mapped.read_buffer()

    def read_start(self, path: str, size: int) -> tuple[bytes, int]:
        with (self._root / path).open("rb", buffering=0) as file:
            return file.read(size), os.fstat(file.fileno()).st_size

    def prepare(self, path: str, parts: Sequence[Part]) -> "PreparedFile":
        """Write a file's data under a temporary name, and sync it.

        After a sync that failed the file is removed and its descriptor closed: the system's cached
        pages may count as written although they are not, and a second sync would say so.
        """
        final = self._root / path
        temporary = final.with_name(temporary_name(final.name))
        prepared = PreparedFile(self._disk, self._root, temporary, final)
        try:
            self._write(self._disk.create(temporary), parts)
        except BaseException:
            prepared.discard()
            raise
        return prepared

    def _write(self, descriptor: int, parts: Sequence[Part]) -> None:
        try:
            write_all(self._disk, descriptor, parts)
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)

    def set_aside(self, path: str, to: str) -> None:
        """Give a file another name, durably, before it loses the one it has."""
        source, target = self._root / path, self._root / to
        self._disk.link(source, target)
        self._disk.sync_folder(target.parent)
        self._disk.unlink(source)
        self._disk.sync_folder(source.parent)

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Remove files, durably."""
        path = self._root / folder
        for name in names:
            try:
                self._disk.unlink(path / name)
            except FileNotFoundError:
                continue
        if names:
            self._disk.sync_folder(path)

    def lock(self, folder: str) -> ExitStack:
        """Lock a lane for this process; the system releases the lock when the process ends.

        Its file is never removed, or the next writer would lock another one.
        """
        path = self._root / folder / LOCK
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        with ExitStack() as lock:
            lock.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(descriptor, _MOST_OWNER_BYTES, 0).decode(errors="replace").strip()
                raise LaneTakenError(
                    f"Lane {folder} of the journal {self.url} is being written by"
                    f" {owner or 'another process'}; a lane has one writer: stop that one, or write"
                    " to another lane."
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            return lock.pop_all()


class PreparedFile:
    """A file that is written and synced, under a temporary name."""

    def __init__(self, disk: Disk, root: Path, temporary: Path, final: Path) -> None:
        self._disk = disk
        self._root = root
        self._temporary = temporary
        self._final = final

    def commit(self, mark: str | None = None, outdated: Sequence[str] = ()) -> bool:
        """Give it its name, and the mark's, and sync the directory once."""
        try:
            self._disk.link(self._temporary, self._final)
            if mark is not None:
                earlier = [self._root / each for each in outdated]
                _mark(self._disk, self._temporary, self._root / mark, earlier)
        finally:
            self.discard()
        self._disk.sync_folder(self._final.parent)
        return mark is not None

    def discard(self) -> None:
        """Remove it, if that can be done: recovery removes it otherwise."""
        with suppress(OSError):
            self._disk.unlink(self._temporary)


def _mark(disk: Disk, path: Path, mark: Path, outdated: Sequence[Path]) -> None:
    """Give a file a further name, and remove what had such a name before, if that can be done."""
    with suppress(FileExistsError):
        disk.link(path, mark)
    for each in outdated:
        with suppress(OSError):
            disk.unlink(each)
