"""Interface of a journal's storage: directories, HDFS and object stores."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import JournalError
from headrace.journal.block import Part
from headrace.journal.layout import PROBE


class Entry(NamedTuple):
    """A file of a folder: name, size (bytes), time of the last write (ms), and bytes on disk."""

    name: str
    size: int
    created_ms: int
    allocated: int


class Appending(Protocol):
    """A file that one writer appends to."""

    @property
    def size(self) -> int:
        """Number of durable bytes."""

    def append(self, parts: Sequence[Part]) -> None:
        """Append bytes and make them durable.

        An error closes the file for good, because a sync after a failed sync may report success
        although pages are lost. FileExistsError if another writer has appended to the file; OSError
        if the bytes are not durable.
        """

    def close(self) -> None:
        """Close the file; later calls do nothing."""


class Storage(Protocol):
    """Files in folders; the folder ``""`` is the root.

    Paths are relative to the root. Every method may raise ``OSError``; callers distinguish only the
    errors named below.
    """

    appends: bool
    """Whether files can be appended to; if not, each segment is put whole, with one frame."""

    @property
    def url(self) -> str:
        """Address of the storage for messages, without secrets."""

    def create(self) -> None:
        """Create the root if it is missing, and make the names in it durable."""

    def create_folder(self, folder: str) -> None:
        """Create a folder durably if it is missing."""

    def folders(self) -> list[str]:
        """Return the names of the root's folders, unsorted; empty without a root."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, unsorted; empty if the folder is missing.

        A listed name is durable: no crash removes a file that a reader has seen.
        """

    def entries(self, folder: str) -> list[Entry]:
        """Return the files of a folder, with their sizes and times."""

    def read(self, path: str, at: int = 0, size: int | None = None) -> pa.Buffer:
        """Read at most ``size`` bytes of a file from position ``at``. Default: the whole file.

        FileNotFoundError if the file is missing.
        """

    def synced_size(self, path: str) -> int:
        """Make a file's bytes durable and return their number; errors as in `read`."""

    def put(self, path: str, parts: Sequence[Part]) -> None:
        """Write a whole file durably under a new name.

        FileExistsError if the name is taken; the existing file stays unchanged.
        """

    def begin(self, path: str) -> Appending:
        """Create a file for appends; errors as in `put`. Only with ``appends``."""
        raise OSError(f"{path} cannot be appended to")

    def go_on(self, path: str, size: int) -> Appending:
        """Cut a file to ``size`` bytes and open it for appends. Only with ``appends``."""
        raise OSError(f"{path} cannot be appended to at position {size}")

    def settled(self, path: str) -> bytes:
        """Read a whole file from the disk, not from caches; the file must have no writer."""
        return bytes(self.read(path).to_pybytes())

    def set_aside(self, path: str, to: str) -> None:
        """Rename a file durably; a crash may leave it under both names.

        FileExistsError if the name is taken; nothing is changed.
        """

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Remove files durably, in this order; missing files are ignored."""

    def making(self) -> AbstractContextManager[None]:
        """Exclude other processes that create the journal. Default: no exclusion."""
        return nullcontext()

    def lock(self, folder: str) -> ExitStack:
        """Claim a lane for writing. The claim ends with the returned stack or with this process.

        Default: no lock. There a second writer fails when it creates a file that exists.
        LaneTakenError if another process holds the lock.
        """
        return ExitStack()


@contextmanager
def as_journal_error(what: str) -> Iterator[None]:
    """Convert an ``OSError`` in the ``with`` block to a ``JournalError`` about ``what``."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        what = what[0].upper() + what[1:]
        raise JournalError(
            f"{what}: {reason}; see to that, then try again: nothing acknowledged is lost."
        ) from error


def probe(storage: Storage, folder: str, size_bytes: int) -> None:
    """Write a file of ``size_bytes`` durably, then remove it; JournalError if that fails."""
    with as_journal_error(f"Nothing can be stored in the journal {storage.url}"):
        storage.remove(folder, [PROBE])  # a crash may have left the probe file
        try:
            storage.put(f"{folder}/{PROBE}", [bytes(size_bytes)])
        finally:
            storage.remove(folder, [PROBE])
