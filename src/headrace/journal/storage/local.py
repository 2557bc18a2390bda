"""A journal in a directory of this machine, or of anything that is mounted like one.

A segment is appended to: one ``writev`` and one ``fdatasync``. Only after that are its new bytes
durable. A reader may see them before: so it syncs the segment before it plans by what it saw there,
and a listing syncs the directory.
"""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace.errors import LaneTakenError
from headrace.journal.block import Part
from headrace.journal.layout import LOCK
from headrace.journal.storage import Entry, Storage

_MOST_PARTS: Final = 512  # POSIX lets a system take no more than 1024 at once


_SECTOR_BYTES: Final = 512
"""The unit of `st_blocks` (POSIX), whatever a file system's blocks are."""


_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC

_datasync = getattr(os, "fdatasync", os.fsync)  # macOS has none


class Disk:
    """The machine's file system, one system call a method; every method raises ``OSError``.

    It is a class of its own so that tests can record, fail and replay a journal's operations.
    """

    def create(self, path: Path) -> int:
        """Return a new file's descriptor, to append to; the name must be free."""
        return os.open(path, os.O_CREAT | os.O_EXCL | _APPEND, 0o666)

    def open(self, path: Path) -> int:
        """Return the descriptor of a file, no link, to append to."""
        return os.open(path, os.O_NOFOLLOW | _APPEND)

    def size(self, descriptor: int) -> int:
        """Return how many bytes a file has."""
        return os.fstat(descriptor).st_size

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut off the bytes of a file behind so many."""
        os.ftruncate(descriptor, size)

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        """Write some of the bytes of some of the parts, at least one; answers how many."""
        return os.writev(descriptor, parts[:_MOST_PARTS])

    def sync(self, descriptor: int) -> None:
        """Make written bytes durable."""
        _datasync(descriptor)

    def sync_path(self, path: Path) -> int:
        """Make durable the bytes that a file has now, whoever wrote them; return how many."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            _datasync(descriptor)
        finally:
            os.close(descriptor)
        return size

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

    appends = True

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

    def read(self, path: str, at: int = 0, size: int | None = None) -> pa.Buffer:
        """Read a part of a file. A mapped one would end this process where it is cut off."""
        with (self._root / path).open("rb", buffering=0) as file:
            left = max(0, os.fstat(file.fileno()).st_size - at)
            data = bytearray(left if size is None else min(size, left))
            view, done = memoryview(data), 0
            while done < len(data) and (
                count := os.preadv(file.fileno(), [view[done:]], at + done)
            ):
                done += count
        return pa.py_buffer(data).slice(0, done)

    def synced_size(self, path: str) -> int:
        return self._disk.sync_path(self._root / path)

    def settled(self, path: str) -> bytes:
        """Read a file without the system's cached pages.

        After a sync that failed these count as written although they are not, whichever process it
        was that failed.
        """
        where = self._root / path
        self._refuse_link(where)
        self._disk.sync_path(where)
        with where.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return file.read()

    def put(self, path: str, parts: Sequence[Part]) -> None:
        """Write a file under its name; a crash may leave a part of it."""
        where = self._root / path
        self._begun(where, parts).close()

    def begin(self, path: str) -> "AppendedFile":
        return self._begun(self._root / path, [])

    def _begun(self, path: Path, parts: Sequence[Part]) -> "AppendedFile":
        file = AppendedFile(self._disk, self._disk.create(path), 0)
        try:
            if parts:
                file.append(parts)
            self._disk.sync_folder(path.parent)
        except BaseException:
            file.close()
            with suppress(OSError):
                self._disk.unlink(path)
            raise
        return file

    def go_on(self, path: str, size: int) -> "AppendedFile":
        """Append to a file, of which nothing is left behind so many bytes when this returns."""
        where = self._root / path
        self._refuse_link(where)
        descriptor = self._disk.open(where)
        try:
            if self._disk.size(descriptor) > size:
                self._disk.truncate(descriptor, size)
            self._disk.sync(descriptor)
        except BaseException:
            self._disk.close(descriptor)
            raise
        return AppendedFile(self._disk, descriptor, size)

    def _refuse_link(self, path: Path) -> None:
        if path.is_symlink():
            raise OSError(errno.ELOOP, f"{path} is a symbolic link in place of a segment")

    def set_aside(self, path: str, to: str) -> None:
        """Give a file another name, durably, before it loses the one it has."""
        source, target = self._root / path, self._root / to
        self._disk.link(source, target)
        self._disk.sync_folder(target.parent)
        self._disk.unlink(source)
        self._disk.sync_folder(source.parent)

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Remove files, each durably before the next one: a crash leaves the last ones."""
        path = self._root / folder
        for name in names:
            with suppress(FileNotFoundError):  # which another has removed, durably or not
                self._disk.unlink(path / name)
            self._disk.sync_folder(path)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Lock the journal's directory; the system releases the lock when the process ends."""
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

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


class AppendedFile:
    """A segment that is appended to."""

    def __init__(self, disk: Disk, descriptor: int, size: int) -> None:
        self._disk = disk
        self._descriptor: int | None = descriptor
        self._size = size

    @property
    def size(self) -> int:
        """Its bytes that are durable."""
        return self._size

    def append(self, parts: Sequence[Part]) -> None:
        """Write bytes behind the others, and sync them.

        Raises:
            FileExistsError: It has other bytes than this writer's.
            OSError: They are not durable, and the file is closed.
        """
        if (descriptor := self._descriptor) is None:
            raise OSError(errno.EBADF, "the file is closed")
        size = self._size + sum(memoryview(part).nbytes for part in parts)
        try:
            self._check(descriptor, self._size)
            write_all(self._disk, descriptor, parts)
            self._disk.sync(descriptor)
            # No lock keeps a second writer out where the file system ignores locks.
            self._check(descriptor, size)
        except BaseException:
            self.close()
            raise
        self._size = size

    def _check(self, descriptor: int, size: int) -> None:
        if (there := self._disk.size(descriptor)) != size:
            raise FileExistsError(
                errno.EEXIST, f"it has {there} bytes where its writer left {size}"
            )

    def close(self) -> None:
        """Let go of the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # what was acknowledged is synced, and the descriptor is gone
                self._disk.close(descriptor)
