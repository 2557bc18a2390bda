"""Interface of a journal's storage."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import JournalError
from headrace.journal.block import Part
from headrace.journal.layout import PROBE


class Entry(NamedTuple):
    """A file of a folder: its name, its bytes, when it was made, and what it takes on a disk."""

    name: str
    size: int
    created_ms: int
    allocated: int


class Appending(Protocol):
    """A file that one writer appends to."""

    @property
    def size(self) -> int:
        """Its bytes that are durable."""

    def append(self, parts: Sequence[Part]) -> None:
        """Write bytes behind the others, and make them durable.

        After an error the file is closed for good: a second sync of pages whose first one failed
        may lie.

        Raises:
            FileExistsError: Another writer has appended to the file.
            OSError: The bytes are not durable.
        """

    def close(self) -> None:
        """Let go of the file; it may be called again."""


class Storage(Protocol):
    """Files in folders; the folder ``""`` is the root.

    Paths are relative to the root. Every method may raise ``OSError``; only the errors listed below
    have a meaning of their own.
    """

    appends: bool
    """Whether a file can be appended to; elsewhere a segment is put whole, with one frame in it."""

    @property
    def url(self) -> str:
        """Address of the storage, to be shown; it holds no secret."""

    def create(self) -> None:
        """Make the root where it is not there, and the names in it durable."""

    def create_folder(self, folder: str) -> None:
        """Make a folder, durably, where it is not there."""

    def folders(self) -> list[str]:
        """The names of the root's folders, in no order; none where there is no root."""

    def names(self, folder: str) -> list[str]:
        """The names of what is in a folder, in no order; none where there is no such folder.

        A listed name is durable: no crash removes a file that a reader has seen.
        """

    def entries(self, folder: str) -> list[Entry]:
        """The files of a folder, with their sizes and times."""

    def read(self, path: str, at: int = 0, size: int | None = None) -> pa.Buffer:
        """Read at most so many bytes of a file from a place on; all of them by default.

        Raises FileNotFoundError if the file is gone.
        """

    def synced_size(self, path: str) -> int:
        """Make a file's bytes durable, and return how many these are; errors as `read`."""

    def put(self, path: str, parts: Sequence[Part]) -> None:
        """Write a whole file, durably, under a name that must be free.

        Raises:
            FileExistsError: There is one of that name; it is left as it is.
        """

    def begin(self, path: str) -> Appending:
        """Begin a file that is appended to; errors as `put`. Only where ``appends``."""
        raise OSError(f"{path} cannot be appended to")

    def go_on(self, path: str, size: int) -> Appending:
        """Append to a file behind so many bytes; others are cut off. Only where ``appends``."""
        raise OSError(f"{path} cannot be appended to behind {size} bytes")

    def settled(self, path: str) -> bytes:
        """Read a whole file that nobody writes, as the disk has it."""
        return bytes(self.read(path).to_pybytes())

    def set_aside(self, path: str, to: str) -> None:
        """Give a file another name, durably; a crash may leave it with both.

        Raises:
            FileExistsError: There is one of that name; nothing is changed.
        """

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Remove files durably, in this order; a missing file is no error."""

    def making(self) -> AbstractContextManager[None]:
        """Let one process at a time make the journal; by default nothing keeps others out."""
        return nullcontext()

    def lock(self, folder: str) -> ExitStack:
        """Claim the right to write a lane, until the stack is closed or this process ends.

        Default: nothing is locked; of two writers, the second finds a name taken.

        Raises:
            LaneTakenError: Another has it.
        """
        return ExitStack()


@contextmanager
def as_journal_error(what: str) -> Iterator[None]:
    """Raise an ``OSError`` from within as a ``JournalError`` that begins with these words."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        what = what[0].upper() + what[1:]
        raise JournalError(
            f"{what}: {reason}; see to that, then try again: nothing acknowledged is lost."
        ) from error


def probe(storage: Storage, folder: str, size_bytes: int) -> None:
    """Write a file of so many bytes, durably, and remove it.

    Raises:
        JournalError: It cannot be written, or not be removed.
    """
    with as_journal_error(f"Nothing can be stored in the journal {storage.url}"):
        storage.remove(folder, [PROBE])  # a crash may have left one
        try:
            storage.put(f"{folder}/{PROBE}", [bytes(size_bytes)])
        finally:
            storage.remove(folder, [PROBE])
