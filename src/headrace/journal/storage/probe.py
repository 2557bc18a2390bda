"""Whether a storage takes files at present."""

from headrace.journal.names import temporary_name
from headrace.journal.storage import Storage, as_journal_error


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
