"""Journals with records in them, for tests of what reads them."""

from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from headrace.journal import Journal, Records
from headrace.journal.storage.local import LocalStorage

TIME_MS = 1_700_000_000_000


def values_of(lane: int, start: int, until: int) -> list[bytes | None]:
    """Each record says where it is."""
    return [f"{lane}:{offset}".encode() for offset in range(start, until)]


def fill(folder: Path, blocks: dict[int, list[int]], *, timestamp_ms: int = TIME_MS) -> Journal:
    """Append blocks of these counts to each lane; a block's records are a second later than the
    one before."""
    journal = Journal.open(str(folder), create=True)
    for lane, counts in blocks.items():
        with journal.writer(lane) as writer:
            for number, count in enumerate(counts):
                end = writer.end
                records = Records.of(
                    values_of(lane, end, end + count), timestamp_ms=timestamp_ms + number * 1_000
                )
                writer.append(records)
    return journal


def displace(folder: str | Path, lane: int = 0) -> None:
    """Append as a second writer beside the first, as can be where no lock keeps them apart."""
    with mock.patch.object(LocalStorage, "lock", lambda *_: ExitStack()):
        writer = Journal.open(str(folder)).writer(lane)
    with writer:
        writer.append(Records.of([b"another's"], timestamp_ms=TIME_MS))
