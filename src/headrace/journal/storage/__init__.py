"""Interface of a journal's storage, implemented for directories, HDFS and object stores."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import JournalError
from headrace.journal.block import Part
from headrace.journal.layout import PROBE


class Entry(NamedTuple):
    """File in a folder.

    ``size`` is the file's size, and ``allocated`` is its space on the disk (both in bytes).
    ``created_ms`` is the time of the last write (ms since the epoch).
    """

    name: str
    size: int
    created_ms: int
    allocated: int


class Appending(Protocol):
    """File that is open for appends by one writer."""

    @property
    def size(self) -> int:
        """Size of the file (bytes); all these bytes are durable."""

    def append(self, parts: Sequence[Part]) -> None:
        """Append bytes and make them durable.

        Raise FileExistsError if another writer has appended to the file, and OSError if the bytes
        are not durable. Any error closes the file: after a failed sync, the next sync may report
        success although bytes are lost.
        """

    def close(self) -> None:
        """Close the file; later calls do nothing."""


class Storage(Protocol):
    """Files of a journal in folders; the folder ``""`` is the root.

    Paths are relative to the root. Every method may raise ``OSError``. Callers distinguish only the
    subclasses of OSError that the method's docstring names.
    """

    appends: bool
    """Whether files can be appended to. If not, each segment has one frame and is written by one
    ``put``."""

    @property
    def url(self) -> str:
        """Address of the storage for error messages, without secrets."""

    def create(self) -> None:
        """Create the root if it is missing. Make the names of the root and its parents durable."""

    def create_folder(self, folder: str) -> None:
        """Create a folder durably if it is missing."""

    def folders(self) -> list[str]:
        """Return the names of the root's folders, unsorted; empty if the root does not exist."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, unsorted; empty if the folder is missing.

        Every returned name is durable: no crash removes a file that a reader has seen.
        """

    def entries(self, folder: str) -> list[Entry]:
        """Return the files of a folder with sizes and times; empty if the folder is missing."""

    def read(self, path: str, at: int = 0, size: int | None = None) -> pa.Buffer:
        """Read at most ``size`` bytes of a file from position ``at``. Default: the whole file.

        Raise FileNotFoundError if the file is missing.
        """

    def synced_size(self, path: str) -> int:
        """Make a file's bytes durable; return their number. Errors as in `read`."""

    def put(self, path: str, parts: Sequence[Part]) -> None:
        """Write a whole file durably under a new name.

        Raise FileExistsError if the name is taken; the existing file stays unchanged.
        """

    def begin(self, path: str) -> Appending:
        """Create a file and open it for appends. Requires `appends`. Errors as in `put`."""
        raise OSError(f"the storage does not support appending to {path}")

    def go_on(self, path: str, size: int) -> Appending:
        """Cut a file to ``size`` bytes and open it for appends. Requires `appends`."""
        raise OSError(f"the storage does not support appending to {path} at position {size}")

    def settled(self, path: str) -> bytes:
        """Read a whole file from the disk, not from caches. No writer may have the file open."""
        return bytes(self.read(path).to_pybytes())

    def set_aside(self, path: str, to: str) -> None:
        """Rename a file durably; a crash may leave the file under its old and its new name.

        Raise FileExistsError if the new name is taken; in this case, nothing is changed.
        """

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Remove files of a folder durably, in the order of ``names``; ignore missing files."""

    def making(self) -> AbstractContextManager[None]:
        """Lock the journal while this process creates it. Default: no lock."""
        return nullcontext()

    def lock(self, folder: str) -> ExitStack:
        """Lock a lane for one writer, until the returned stack is closed or this process ends.

        Raise LaneTakenError if another process holds the lock. Default: no lock. Without a lock, a
        second writer fails when it creates a file that exists.
        """
        return ExitStack()


@contextmanager
def as_journal_error(what: str) -> Iterator[None]:
    """Convert an ``OSError`` in the ``with`` block to a ``JournalError``.

    ``what`` is the first clause of the message, such as "The journal /j cannot be read".
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        what = what[0].upper() + what[1:]
        raise JournalError(
            f"{what}: {reason}; correct this, then try again: no acknowledged record is lost."
        ) from error


def probe(storage: Storage, folder: str, size_bytes: int) -> None:
    """Test whether a folder can be written: write a file durably, and remove it.

    Raise JournalError if ``size_bytes`` bytes cannot be written.
    """
    with as_journal_error(f"Nothing can be stored in the journal {storage.url}"):
        storage.remove(folder, [PROBE])  # a crash may have left the probe file
        try:
            storage.put(f"{folder}/{PROBE}", [bytes(size_bytes)])
        finally:
            storage.remove(folder, [PROBE])
