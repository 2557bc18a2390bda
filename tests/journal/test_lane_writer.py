"""The writer of a lane, and each way in which a disk may fail it."""

import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.journal.samples import NOW_MS, numbered, values_of
from tests.journal.shim import Fast

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError, JournalError, OptionError
from headrace.journal import Journal, LaneWriter, Records
from headrace.journal.block import Part
from headrace.journal.storage.local import Disk, LocalStorage, write_all

HOLD: Final = """
import sys
from headrace.journal import Journal
writer = Journal.open(sys.argv[1]).writer(0)
print("open", flush=True)
sys.stdin.read()
"""


class FailingDisk(Disk):
    """Fails once, in the call of a name, and writes down which calls there were."""

    def __init__(self) -> None:
        self.fail: str | None = None
        self.error = errno.EIO
        self.calls: list[tuple[str, object]] = []

    def _call(self, name: str, of: object) -> None:
        self.calls.append((name, of))
        if name == self.fail:
            self.fail = None
            raise OSError(self.error, os.strerror(self.error))

    def create(self, path: Path) -> int:
        self._call("create", path)
        return super().create(path)

    def write(self, descriptor: int, parts: Sequence[Part]) -> int:
        if self.fail == "write":
            super().write(descriptor, [b"half"])
        self._call("write", descriptor)
        return super().write(descriptor, parts)

    def sync(self, descriptor: int) -> None:
        self._call("sync", descriptor)
        super().sync(descriptor)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self._call("close", descriptor)

    def link(self, path: Path, to: Path) -> None:
        self._call("link", to)
        super().link(path, to)

    def unlink(self, path: Path) -> None:
        self._call("unlink", path)
        super().unlink(path)

    def sync_folder(self, path: Path) -> None:
        self._call("sync_folder", path)
        super().sync_folder(path)


@pytest.fixture
def disk() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def journal(tmp_path: Path, disk: FailingDisk) -> Journal:
    return Journal.in_storage(LocalStorage(tmp_path / "orders", disk), "orders", create=True)


@pytest.fixture
def writer(journal: Journal) -> Iterator[LaneWriter]:
    with journal.writer(0) as writer:
        writer.append(numbered(0, 2))
        yield writer


def files(journal: Journal) -> list[str]:
    """The names in lane 0, but its lock's and its marks'."""
    folder = Path(journal.storage.url) / "0"
    names = [path.name for path in folder.iterdir() if path.name != "lock"]
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
    assert values_of(journal) == [b"%d" % number for number in range(6)]


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
    assert values_of(journal) == [b"%d" % number for number in range(14)]


def test_closing_waits_for_the_last_block(journal: Journal) -> None:
    with journal.writer(0) as writer:
        future = writer.submit(numbered(0, 3))
    assert future.done()
    assert journal.bounds() == {0: (0, 3)}


class HeldDisk(Disk):
    """Fails one call of a name, but not before it is let go on."""

    def __init__(self) -> None:
        self.fail: str | None = None
        self.held = threading.Event()
        self.go_on = threading.Event()

    def _call(self, name: str) -> None:
        if name == self.fail:
            self.fail = None
            self.held.set()
            assert self.go_on.wait(60)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def sync(self, descriptor: int) -> None:
        self._call("sync")
        super().sync(descriptor)

    def sync_folder(self, path: Path) -> None:
        self._call("sync_folder")
        super().sync_folder(path)


@pytest.mark.parametrize(("call", "left"), [("sync", [FIRST]), ("sync_folder", [FIRST, SECOND])])
def test_a_block_behind_one_that_failed_fails_too(
    tmp_path: Path, call: str, left: list[str]
) -> None:
    """Its offsets would not be those it was written for, or there would be a gap."""
    disk = HeldDisk()
    journal = Journal.in_storage(LocalStorage(tmp_path / "orders", disk), "orders", create=True)
    with journal.writer(0) as writer:
        writer.append(numbered(0, 2))
        disk.fail = call
        first = writer.submit(numbered(2, 5))
        assert disk.held.wait(60)
        second = writer.submit(numbered(5, 6))
        disk.go_on.set()
        with pytest.raises(JournalError, match=r"offset 2 of lane 0 .*: Input/output error"):
            first.result()
        with pytest.raises(JournalError, match=r"offset 5 of .* the block before it was not"):
            second.result()
        assert files(journal) == left
        start = 2 if left == [FIRST] else 5
        assert writer.append(numbered(start, 9)).start == start
    assert values_of(journal) == [b"%d" % number for number in range(9)]


def test_a_temporary_file_that_cannot_be_removed_is_removed_later(
    journal: Journal, writer: LaneWriter, disk: FailingDisk
) -> None:
    disk.fail = "unlink"
    assert writer.append(numbered(2, 5)) == OffsetRange("orders", 0, 2, 5)
    (left,) = [name for name in files(journal) if name.endswith(".tmp")]
    writer.close()
    with journal.writer(0):
        assert left not in files(journal)
    assert values_of(journal) == [b"%d" % number for number in range(5)]


def test_a_short_write_goes_on_where_it_ended(tmp_path: Path) -> None:
    class Slow(Disk):
        def write(self, descriptor: int, parts: Sequence[Part]) -> int:
            return super().write(descriptor, [memoryview(parts[0])[:3]])

    slow = Journal.in_storage(LocalStorage(tmp_path / "slow", Slow()), "slow", create=True)
    with slow.writer(0) as writer:
        writer.append(numbered(0, 20))
    assert values_of(slow) == [b"%d" % number for number in range(20)]


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
    with journal.writer(0) as writer:
        writer.append(numbered(0, 2))
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
    with journal.writer(0) as writer:
        writer.append(numbered(0, 2))
    path = Path(journal.storage.url) / "0" / FIRST
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptionError, match=re.escape(f"{path} (offset 0 of lane 0) is damaged")):
        journal.writer(0)
    path.write_bytes(data)
    journal.writer(0).close()


def test_a_last_block_that_is_cut_off_at_any_byte_stops_its_lane(tmp_path: Path) -> None:
    """As after a disk that kept the name but not the data, whatever it has promised."""
    storage = LocalStorage(tmp_path / "orders", Fast())
    journal = Journal.in_storage(storage, "orders", create=True)
    with journal.writer(0) as writer:
        writer.append(numbered(0, 2))
    path = Path(journal.storage.url) / "0" / FIRST
    data = path.read_bytes()
    told = re.escape(f"{path} (offset 0 of lane 0) is damaged")
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptionError, match=told):
            journal.writer(0)
        with pytest.raises(CorruptionError, match=told):
            next(journal.read(OffsetRange("orders", 0, 0, 2)))
        assert path.stat().st_size == size, "it is left as it is"


@pytest.mark.parametrize("lane", ["../1", "..", "/1", "1/../../2", -1, 100_000])
def test_a_lane_that_is_no_number_leads_nowhere(journal: Journal, lane: int) -> None:
    journal.writer(0).close()
    outside = Path(journal.storage.url).parent
    before = sorted(outside.rglob("*"))
    look: Callable[[int], object]
    for look in (journal.writer, journal.blocks, journal.lane_bounds, journal.lost, journal.firsts):
        with pytest.raises(OptionError, match="not a whole number from 0 to 99999"):
            look(lane)
    with pytest.raises(OptionError, match="not a whole number from 0 to 99999"):
        journal.remove_before(lane, 10)
    with pytest.raises(OptionError, match="not a whole number from 0 to 99999"):
        next(journal.read(OffsetRange("orders", lane, 0, 1)))
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
    start = Path(journal.storage.url) / "0" / f"{2**63 - 3:020d}.start"
    start.touch()
    with journal.writer(0) as writer:
        with pytest.raises(JournalError, match="is full"):
            writer.append(numbered(0, 3))
        writer.append(numbered(0, 2))


def test_a_name_that_another_has_taken_ends_a_writer(journal: Journal, writer: LaneWriter) -> None:
    (Path(journal.storage.url) / "0" / SECOND).write_bytes(
        (Path(journal.storage.url) / "0" / FIRST).read_bytes()
    )
    with pytest.raises(CorruptionError, match="is not the block of its name"):
        writer.append(numbered(2, 3))
