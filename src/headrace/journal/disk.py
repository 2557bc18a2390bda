"""Each operation by which a journal changes a directory: one call, one system call.

It is a class of its own so that tests can write down, fail and replay what a journal does.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.journal.block import Part

_MOST_PARTS: Final = 512  # POSIX lets a system take no more than 1024 at once


class Disk:
    """The machine's file system; every method raises ``OSError``."""

    def create(self, path: Path) -> int:
        """A new file's descriptor; its name must be free."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)

    def open(self, path: Path) -> int:
        """The descriptor of a file that is there, to write over its beginning."""
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        """Write some of the bytes of some of the parts, at least one; answers how many."""
        return os.writev(descriptor, parts[:_MOST_PARTS])

    def sync(self, descriptor: int) -> None:
        """Make what was written durable."""
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
