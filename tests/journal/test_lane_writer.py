"""The writer of a lane, and each way in which a disk may fail it."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.journal.samples import (
    NOW_MS,
    append,
    folder,
    journal_at,
    numbered,
    numbers,
    values_of,
)
from tests.journal.shim import FailingDisk

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError, JournalError, OptionError
from headrace.journal import Journal, LaneWriter, Records
from headrace.journal.block import Part
from headrace.journal.storage.local import Disk, write_all

HOLD: Final = """
import sys
from headrace.journal import Journal
writer = Journal.open(sys.argv[1]).writer(0)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def journal(tmp_path: Path, disk: FailingDisk) -> Journal:
    return journal_at(tmp_path / "orders", disk)


@pytest.fixture
def writer(journal: Journal) -> Iterator[LaneWriter]:
    with journal.writer(0) as writer:
        writer.append(numbered(0, 2))
        yield writer


def files(journal: Journal) -> list[str]:
    """The names in lane 0, but its lock's and its marks'."""
    names = [path.name for path in folder(journal).iterdir() if path.name != "lock"]
    return sorted(name for name in names if not name.endswith(".end"))


FIRST: Final = "00000000000000000000.block"
SECOND: Final = "00000000000000000002.block"


def test_offsets_are_dense_from_0_on_in_each_lane(journal: Journal) -> None:
    with journal.writer(0) as one, journal.writer(99_999) as other:
        assert one.append(numbered(0, 3)) == OffsetRange("orders", 0, 0, 3)
        assert one.append(numbered(3, 4)) == OffsetRange("orders", 0, 3, 4)
        assert other.append(numbered(0, 2)) == OffsetRange("orders", 99_999, 0, 2)
        assert (one.end, other.end) == (4, 2)
    with journal.writer(0) as again:
        assert again.append(numbered(4, 6)) == OffsetRange("orders", 0, 4, 6)
    assert journal.bounds() == {0: (0, 6), 99_999: (0, 2)}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("create", errno.EMFILE),
        ("write", errno.ENOSPC),
        ("write", errno.EIO),
        ("sync", errno.EIO),
        ("sync", errno.ENOSPC),
        ("close", errno.EIO),
        ("link", errno.EIO),
    ],
)
def test_a_call_that_fails_before_the_name_is_given_leaves_nothing(
    journal: Journal, writer: LaneWriter, disk: FailingDisk, call: str, error: int
) -> None:
    disk.fail, disk.error = call, error
    with pytest.raises(JournalError, match=f"offset 2 of lane 0 .*: {os.strerror(error)}; "):
        writer.append(numbered(2, 5))
    assert call in [name for name, _ in disk.calls]
    assert files(journal) == [FIRST]
    assert writer.end == 2
    assert writer.append(numbered(2, 4)) == OffsetRange("orders", 0, 2, 4)
    assert values_of(journal) == [b"0", b"1", b"2", b"3"]


def test_a_file_whose_sync_fails_is_given_up(writer: LaneWriter, disk: FailingDisk) -> None:
    """A second sync of it could succeed without a byte having reached the disk."""
    disk.fail = "sync"
    disk.calls.clear()
    with pytest.raises(JournalError):
        writer.append(numbered(2, 5))
    names = [name for name, _ in disk.calls]
    assert names == ["create", "write", "sync", "close", "unlink"]
    disk.calls.clear()
    writer.append(numbered(2, 5))
    made = [of for name, of in disk.calls if name == "create"]
    assert len(made) == 1  # another file, written from its beginning
    assert [name for name, _ in disk.calls].count("sync") == 1


def test_a_name_that_may_not_be_durable_is_not_acknowledged_nor_given_again(
    journal: Journal, writer: LaneWriter, disk: FailingDisk
) -> None:
    """A reader may have seen it: its offsets are never those of other records."""
    disk.fail = "sync_folder"
    with pytest.raises(JournalError, match="could not be made durable"):
        writer.append(numbered(2, 5))
    assert writer.end == 2
    assert files(journal) == [FIRST, SECOND]
    assert writer.append(numbered(5, 6)) == OffsetRange("orders", 0, 5, 6)
    assert values_of(journal) == numbers(range(6))


def test_a_block_that_is_there_although_its_append_failed_is_told_once(
    writer: LaneWriter, disk: FailingDisk
) -> None:
    def failing(call: str, ids: list[str | None]) -> None:
        disk.fail = call
        with pytest.raises(JournalError, match="could not be made durable"):
            writer.append(Records.of([b""] * len(ids), timestamp_ms=NOW_MS, ids=ids))

    assert writer.settle() == []
    failing("sync", ["a"])
    assert writer.settle() == []
    failing("sync_folder", ["b", None])
    assert writer.append(numbered(4, 5)).start == 4  # which has looked where the lane ends
    failing("sync_folder", ["c"])
    disk.fail = "sync_folder"
    with pytest.raises(JournalError, match=r"The end of lane 0 .* cannot be found after an append"):
        writer.settle()
    assert writer.settle() == [
        (["b", None], OffsetRange("orders", 0, 2, 4)),
        (["c"], OffsetRange("orders", 0, 5, 6)),
    ]
    failing("sync_folder", [None])
    assert writer.settle() == []
    assert writer.append(numbered(7, 8)).start == 7


def test_a_block_is_written_while_the_one_before_gets_its_name(
    journal: Journal, writer: LaneWriter, disk: FailingDisk
) -> None:
    futures = [writer.submit(numbered(at, at + 3)) for at in range(2, 14, 3)]
    offsets = [future.result() for future in futures]
    assert [(each.start, each.until) for each in offsets] == [(2, 5), (5, 8), (8, 11), (11, 14)]
    assert writer.end == 14
    assert values_of(journal) == numbers(range(14))


def test_closing_waits_for_the_last_block(journal: Journal) -> None:
    with journal.writer(0) as writer:
        future = writer.submit(numbered(0, 3))
    assert future.done()
    assert journal.bounds() == {0: (0, 3)}


@pytest.mark.parametrize(("call", "left"), [("sync", [FIRST]), ("sync_folder", [FIRST, SECOND])])
def test_a_block_behind_one_that_failed_fails_too(
    journal: Journal, writer: LaneWriter, disk: FailingDisk, call: str, left: list[str]
) -> None:
    """Its offsets would not be those it was written for, or there would be a gap."""
    disk.fail = call
    disk.may_fail.clear()
    first = writer.submit(numbered(2, 5))
    assert disk.fails.wait(60)
    second = writer.submit(numbered(5, 6))
    disk.may_fail.set()
    with pytest.raises(JournalError, match=r"offset 2 of lane 0 .*: Input/output error"):
        first.result()
    with pytest.raises(JournalError, match=r"offset 5 of .* the block before it was not"):
        second.result()
    assert files(journal) == left
    start = 2 if left == [FIRST] else 5
    assert writer.append(numbered(start, 9)).start == start
    assert values_of(journal) == numbers(range(9))


def test_a_temporary_file_that_cannot_be_removed_is_removed_later(
    journal: Journal, writer: LaneWriter, disk: FailingDisk
) -> None:
    disk.fail = "unlink"
    assert writer.append(numbered(2, 5)) == OffsetRange("orders", 0, 2, 5)
    (left,) = [name for name in files(journal) if name.endswith(".tmp")]
    writer.close()
    with journal.writer(0):
        assert left not in files(journal)
    assert values_of(journal) == numbers(range(5))


def test_a_short_write_goes_on_where_it_ended(tmp_path: Path) -> None:
    class Slow(Disk):
        def write(self, descriptor: int, parts: Sequence[Part]) -> int:
            return super().write(descriptor, [memoryview(parts[0])[:3]])

    slow = journal_at(tmp_path / "slow", Slow())
    append(slow, 20)
    assert values_of(slow) == numbers(range(20))


def test_a_disk_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    class Full(Disk):
        def write(self, descriptor: int, parts: Sequence[Part]) -> int:
            return 0

    disk = Full()
    descriptor = disk.create(tmp_path / "file")
    with pytest.raises(OSError, match="0 bytes of a file were written"):
        write_all(disk, descriptor, [b"abc"])
    disk.close(descriptor)


def test_many_parts_are_all_written(tmp_path: Path) -> None:
    parts = [b"%d," % number for number in range(5_000)]
    disk = Disk()
    descriptor = disk.create(tmp_path / "file")
    write_all(disk, descriptor, [b"", *parts, b""])
    disk.close(descriptor)
    assert (tmp_path / "file").read_bytes() == b"".join(parts)


def test_a_lane_has_one_writer(journal: Journal, writer: LaneWriter) -> None:
    with pytest.raises(JournalError, match=rf"Lane 0 .* is being written by process {os.getpid()}"):
        journal.writer(0)
    journal.writer(1).close()
    writer.close()
    journal.writer(0).close()


@pytest.mark.integration
def test_a_writer_that_is_killed_does_not_keep_its_lane(journal: Journal) -> None:
    append(journal, 2)
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLD, journal.storage.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == b"open\n"
        with pytest.raises(JournalError, match=f"written by process {holding.pid} on "):
            journal.writer(0)
        holding.kill()
    with journal.writer(0) as writer:
        assert writer.end == 2


def test_a_writer_that_cannot_recover_gives_the_lane_back(journal: Journal) -> None:
    append(journal, 2)
    path = folder(journal) / FIRST
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptionError, match=re.escape(f"{path} (offset 0 of lane 0) is damaged")):
        journal.writer(0)
    path.write_bytes(data)
    journal.writer(0).close()


@pytest.mark.integration
def test_a_last_block_that_is_cut_off_at_any_byte_stops_its_lane(tmp_path: Path) -> None:
    """As after a disk that kept the name but not the data, whatever it has promised."""
    journal = journal_at(tmp_path / "orders")
    append(journal, 2)
    path = folder(journal) / FIRST
    data = path.read_bytes()
    damaged = re.escape(f"{path} (offset 0 of lane 0) is damaged")
    looks: list[Callable[[], object]] = [
        lambda: journal.writer(0),
        journal.bounds,
        lambda: next(journal.read(OffsetRange("orders", 0, 0, 2))),
        lambda: journal.records(0, 0),
    ]
    for size in range(len(data)):
        path.write_bytes(data[:size])
        for look in looks:
            with pytest.raises(CorruptionError, match=damaged):
                look()
        assert path.stat().st_size == size, "it is left as it is"


@pytest.mark.parametrize("lane", ["../1", "..", "/1", "1/../../2", -1, 100_000])
def test_a_lane_that_is_no_number_leads_nowhere(journal: Journal, lane: int) -> None:
    journal.writer(0).close()
    outside = Path(journal.storage.url).parent
    before = sorted(outside.rglob("*"))
    looks: list[Callable[[int], object]] = [
        journal.writer,
        journal.blocks,
        journal.lane_bounds,
        journal.lost,
        journal.firsts,
        lambda lane: journal.remove_before(lane, 10),
        lambda lane: journal.read(OffsetRange("orders", lane, 0, 1)),
    ]
    for look in looks:
        with pytest.raises(OptionError, match="not a whole number from 0 to 99999"):
            look(lane)
    assert sorted(outside.rglob("*")) == before


def test_a_closed_writer_writes_nothing(journal: Journal, writer: LaneWriter) -> None:
    writer.close()
    writer.close()
    with pytest.raises(JournalError, match="is closed"):
        writer.append(numbered(2, 3))
    assert files(journal) == [FIRST]


def test_a_block_has_at_least_one_record_and_not_too_many(
    writer: LaneWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.journal.lane_writer.MAX_RECORDS", 3)
    with pytest.raises(OptionError, match="A block of 0 records"):
        writer.append(Records.of([], timestamp_ms=NOW_MS))
    with pytest.raises(OptionError, match=r"A block of 4 records .*; 1 to 3 are allowed"):
        writer.append(numbered(2, 6))
    assert writer.append(numbered(2, 5)).count == 3


def test_a_lane_has_a_last_offset(journal: Journal) -> None:
    journal.writer(0).close()
    (folder(journal) / f"{2**63 - 3:020d}.start").touch()
    with journal.writer(0) as writer:
        with pytest.raises(JournalError, match="is full"):
            writer.append(numbered(0, 3))
        writer.append(numbered(0, 2))


def test_a_name_that_another_has_taken_ends_a_writer(journal: Journal, writer: LaneWriter) -> None:
    (folder(journal) / SECOND).write_bytes((folder(journal) / FIRST).read_bytes())
    with pytest.raises(CorruptionError, match="is not the block of its name"):
        writer.append(numbered(2, 3))
