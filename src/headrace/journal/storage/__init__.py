"""What a journal needs of the place where its files are."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, Protocol, Self

import pyarrow as pa

from headrace.errors import JournalError
from headrace.journal.block import Part


class Entry(NamedTuple):
    """A file of a folder: its name, its bytes, and when it was made."""

    name: str
    size: int
    created_ms: int


class Lock(Protocol):
    """The right to write a lane, until it is closed or its process ends, however that ends."""

    def close(self) -> None:
        """Give it back; of a lock that is closed already nothing more is done."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_raised: object) -> None: ...


class Unlocked(nullcontext["Unlocked"]):
    """A lock that holds nothing: a second writer is kept out by a name that is taken."""

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """There is nothing to give back."""


class Prepared(Protocol):
    """A file's bytes, brought as far as they can be without the file having its name."""

    def commit(self, mark: str | None = None, outdated: Sequence[str] = ()) -> bool:
        """Give the file its name, durably, or (after an error other than the next) who knows.

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
        """Give the file up."""


class Storage(Protocol):
    """Files that are written once, whole, in folders one level deep; the folder ``""`` is the root.

    Paths are relative to the root. Every method may raise ``OSError``; only what is listed below
    has a meaning of its own.
    """

    @property
    def url(self) -> str:
        """Where it is, to be shown; it holds no secret."""

    def create(self) -> None:
        """Make the root where it is not there, and the names in it durable."""

    def create_folder(self, folder: str) -> None:
        """Make a folder, durably, where it is not there."""

    def folders(self) -> list[str]:
        """The names of the root's folders, in no order; none where there is no root."""

    def names(self, folder: str) -> list[str]:
        """The names of a folder's files, in no order; none where there is no such folder.

        What is listed is durable: no crash takes back what a reader has once seen.
        """

    def entries(self, folder: str) -> list[Entry]:
        """The same, with the files' sizes and times."""

    def read(self, path: str) -> pa.Buffer:
        """A whole file; without copying it where it can be mapped.

        Raises:
            FileNotFoundError: There is none.
        """

    def read_start(self, path: str, size: int) -> tuple[bytes, int]:
        """At most that many bytes of a file's beginning, and the file's size.

        Raises:
            FileNotFoundError: There is none.
        """

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
        """Remove files, in any order; what is not there is no error."""

    def lock(self, folder: str) -> Lock:
        """Take the right to write a lane. Default: nothing is held; a taken name tells the second.

        Raises:
            LaneTakenError: Another has it.
        """
        return Unlocked()


@contextmanager
def as_journal_error(what: str) -> Iterator[None]:
    """Raise an ``OSError`` from within as a ``JournalError``.

    Args:
        what: The beginning of the sentence, up to what the reason follows.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        what = what[0].upper() + what[1:]
        raise JournalError(
            f"{what}: {reason}; see to that, then try again: nothing acknowledged is lost."
        ) from error
