"""Interface of a journal's storage."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import JournalError
from headrace.journal.block import Part
from headrace.journal.names import temporary_name


class Entry(NamedTuple):
    """A file of a folder: its name, its bytes, when it was made, and what it takes on a disk."""

    name: str
    size: int
    created_ms: int
    allocated: int


class Prepared(Protocol):
    """A file's bytes, brought as far as they can be without the file having its name."""

    def commit(self, mark: str | None = None, outdated: Sequence[str] = ()) -> bool:
        """Give the file its name, durably; after an error but the next, the outcome is unknown.

        It is called once, or ``discard`` is.

        Args:
            mark: A path in the same folder that the file gets as a second name, where that costs
                no further sync; it may reach the disk when the first has not.
            outdated: Paths of earlier marks in that folder, to be removed with it.

        Returns:
            Whether the file has its second name; otherwise nothing is removed, either.

        Raises:
            FileExistsError: There is one of that name; it is left as it is.
        """

    def discard(self) -> None:
        """Remove the file, if that can be done: who opens the lane next removes it otherwise."""


class Storage(Protocol):
    """Files that are written once, whole, in folders; the folder ``""`` is the root.

    Paths are relative to the root. Every method may raise ``OSError``; only the errors listed below
    have a meaning of their own.
    """

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

        A listed file is durable: no crash removes a file that a reader has seen.
        """

    def entries(self, folder: str) -> list[Entry]:
        """The files of a folder, with their sizes and times."""

    def read(self, path: str) -> pa.Buffer:
        """A whole file, mapped where that is possible; raises FileNotFoundError if it is gone."""

    def read_start(self, path: str, size: int) -> tuple[bytes, int]:
        """At most that many bytes of a file's beginning, and the file's size; errors as `read`."""

    def prepare(self, path: str, parts: Sequence[Part]) -> Prepared:
        """Write a file without giving it its name yet; several may be prepared at once.

        A name is never seen before its file is whole, and never given to a second file.
        """

    def put(self, path: str, parts: Sequence[Part]) -> None:
        """Write a file: ``prepare`` and ``commit``.

        Raises:
            FileExistsError: There is one of that name; it is left as it is.
        """
        self.prepare(path, parts).commit()

    def set_aside(self, path: str, to: str) -> None:
        """Give a file another name, durably; a crash may leave it with both.

        Raises:
            FileExistsError: There is one of that name; nothing is changed.
        """

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Remove files, in any order; a missing file is no error."""

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

    It has a temporary name: the next writer of the lane removes the files that a crash has left.

    Raises:
        JournalError: It cannot be written, or not be removed.
    """
    name = temporary_name("probe")
    with as_journal_error(f"Nothing can be stored in the journal {storage.url}"):
        try:
            storage.put(f"{folder}/{name}", [bytes(size_bytes)])
        finally:
            storage.remove(folder, [name])
