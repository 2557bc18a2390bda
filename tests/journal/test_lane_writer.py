"""The writer of a lane, and each way in which a disk may fail it."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.journal.journals import displace
from tests.journal.samples import (
    NOW_MS,
    append,
    damage,
    folder,
    journal_at,
    numbered,
    numbers,
    segments_of,
    values_of,
)
from tests.journal.shim import FailingDisk

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError, JournalError, LaneTakenError, OptionError
from headrace.journal import Journal, LaneWriter, Records, repair, verify
from headrace.journal.block import Part
from headrace.journal.journal_check import DEFECTS
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
    """The names in lane 0, but its lock's."""
    return sorted(path.name for path in folder(journal).iterdir() if path.name != "lock")


FIRST: Final = "00000000000000000000.segment"


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
        ("write", errno.ENOSPC),
        ("write", errno.EIO),
        ("sync", errno.EIO),
        ("sync", errno.ENOSPC),
    ],
)
def test_an_append_that_fails_leaves_nothing(
    journal: Journal, writer: LaneWriter, disk: FailingDisk, call: str, error: int
) -> None:
    before = (folder(journal) / FIRST).read_bytes()
    disk.fail, disk.error = call, error
    with pytest.raises(JournalError, match=f"offset 2 of lane 0 .*: {os.strerror(error)}; "):
        writer.append(numbered(2, 5))
    assert files(journal) == [FIRST]
    assert (folder(journal) / FIRST).read_bytes() == before
    assert journal.bounds() == {0: (0, 2)}
    assert writer.end == 2
    assert writer.settle() == []
    assert writer.append(numbered(2, 4)) == OffsetRange("orders", 0, 2, 4)
    assert values_of(journal) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("call", ["create", "sync_folder"])
def test_a_segment_that_cannot_be_begun_is_begun_by_the_next_append(
    journal: Journal, writer: LaneWriter, disk: FailingDisk, call: str
) -> None:
    with segments_of(1):
        disk.fail = call
        with pytest.raises(JournalError, match="offset 2 of lane 0"):
            writer.append(numbered(2, 5))
        assert writer.append(numbered(2, 4)) == OffsetRange("orders", 0, 2, 4)
    assert files(journal) == [FIRST, f"{2:020d}.segment"]
    assert values_of(journal) == numbers(range(4))


def test_a_file_whose_sync_fails_is_given_up(writer: LaneWriter, disk: FailingDisk) -> None:
    """A second sync of it could succeed without a byte having reached the disk."""
    disk.fail = "sync"
    disk.calls.clear()
    with pytest.raises(JournalError):
        writer.append(numbered(2, 5))
    names = [name for name, _ in disk.calls]
    assert names == ["write", "sync", "close", "sync_folder", "open", "truncate", "sync"]


def test_what_cannot_be_cut_off_is_cut_off_before_the_next_append(
    journal: Journal, writer: LaneWriter, disk: FailingDisk
) -> None:
    """A disk that fails for good leaves the frame: another process may see it meanwhile."""
    disk.fail, disk.then = "sync", ["open", "open"]
    for _ in range(2):
        with pytest.raises(JournalError):
            writer.append(numbered(2, 5))
    assert writer.append(numbered(2, 3)) == OffsetRange("orders", 0, 2, 3)
    assert values_of(journal) == numbers(range(3))


def test_a_torn_tail_is_cut_off_when_the_lane_is_opened(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    append(journal, 2, 2)
    path = folder(journal) / FIRST
    data = path.read_bytes()
    first = len(data) // 2 + 1  # within the second frame
    for size in range(first, len(data)):
        path.write_bytes(data[:size])
        assert journal.bounds() == {0: (0, 2)}
        with journal.writer(0) as writer:
            assert writer.end == 2
        assert len(path.read_bytes()) < size
    assert f"of {path} are removed" in caplog.text


def test_a_segment_is_finished_at_its_size(journal: Journal) -> None:
    with segments_of(900), journal.writer(0) as writer:
        for at in range(5):
            writer.append(numbered(at, at + 1))
    segments = journal.segments(0)
    assert [(each.first, each.until, each.blocks) for each in segments] == [
        (0, 2, 2),
        (2, 4, 2),
        (4, 5, 1),
    ]
    assert values_of(journal) == numbers(range(5))


def test_a_segment_is_finished_after_its_time(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.journal.lane_writer.SEGMENT_S", 0.0)
    append(journal, 1, 1)
    assert files(journal) == [FIRST, f"{1:020d}.segment"]


def test_a_lane_whose_last_segment_is_empty_goes_on(journal: Journal) -> None:
    """A crash right behind the beginning of a segment leaves that; the chain goes on as well."""
    append(journal, 2)
    (folder(journal) / f"{2:020d}.segment").touch()
    look = journal.look(0)
    assert look.end.until == 2
    assert look.end.checksum != 0
    append(journal, 3)
    assert verify(journal).findings == ()
    assert values_of(journal) == numbers(range(5))


@pytest.mark.parametrize("torn", [b"", bytes(60)])
@pytest.mark.parametrize("before", ["declared lost", "damaged", "longer"])
def test_a_lane_goes_on_in_an_empty_segment_whatever_is_before_it(
    journal: Journal, torn: bytes, before: str
) -> None:
    """A crash may leave that also behind a file that was damaged before; a repair leaves it so."""
    with segments_of(1):
        append(journal, 2, 3)
    if before == "longer":
        with (folder(journal) / FIRST).open("ab") as file:
            file.write(b"more")
    else:
        damage(journal, 0, at=100)
    if before == "declared lost":
        repair(journal)
    (folder(journal) / f"{2:020d}.segment").write_bytes(torn)
    append(journal, 1)
    if before == "damaged":
        assert len(repair(journal)) == 1
    assert verify(journal).whole
    assert values_of(journal) == numbers(range(2 if before != "longer" else 0, 3))


def test_a_symbolic_link_in_place_of_a_segment_is_refused(journal: Journal, tmp_path: Path) -> None:
    append(journal, 2)
    path, to = folder(journal) / FIRST, tmp_path / "elsewhere"
    path.rename(to)
    path.symlink_to(to)
    before = to.read_bytes()
    with pytest.raises(JournalError, match=f"the segment {path} is a symbolic link"):
        journal.writer(0)
    assert to.read_bytes() == before


@pytest.mark.parametrize(
    ("harm", "number"),
    [
        ("half a header", 1),
        ("nothing", 1),
        ("another journal's", 1),
        ("another journal's", 2),
        ("a hole", 1),
        ("a hole", 2),
    ],
)
def test_a_segment_that_is_not_what_was_written_is_refused_as_it_is(
    journal: Journal, tmp_path: Path, harm: str, number: int
) -> None:
    """The file is named, and nothing of it is cut off or overwritten.

    The last segment is read up to where it is whole, and not written on.
    """
    other = journal_at(tmp_path / "other" / "orders")
    for each in (journal, other):
        with segments_of(1):
            append(each, 2, 2, 2)
        append(each, 2)
    paths = sorted(folder(journal).glob("*.segment"))
    path, data = paths[number], paths[number].read_bytes()
    if harm == "half a header":
        path.write_bytes(data[:60])
    elif harm == "another journal's":
        path.write_bytes((folder(other) / path.name).read_bytes())
    elif harm == "a hole":
        path.write_bytes(data[:100] + bytes(100) + data[200:])
    else:
        path.write_bytes(b"")
    before = {each: each.read_bytes() for each in paths}
    with pytest.raises(JournalError, match=re.escape(str(path))):
        journal.writer(0).close() if number == 2 else values_of(journal)
    finding = next(each for each in verify(journal).findings if each.kind in DEFECTS)
    assert f"{journal.storage.url}/{finding.path}" == str(path)
    assert {each: each.read_bytes() for each in paths} == before


def test_a_second_writer_that_no_lock_keeps_out_is_noticed(
    journal: Journal, writer: LaneWriter
) -> None:
    displace(journal.storage.url)
    for _ in range(2):
        with pytest.raises(LaneTakenError, match="has another writer"):
            writer.append(numbered(2, 5))
    assert values_of(journal) == [b"0", b"1", b"another's"]


@pytest.mark.parametrize("call", ["write", "sync"])
def test_another_writer_s_records_are_not_cut_off_after_a_failure(
    journal: Journal, writer: LaneWriter, disk: FailingDisk, call: str
) -> None:
    disk.fail, disk.then = call, ["open"]  # and it cannot be cut off at once
    with pytest.raises(JournalError):
        writer.append(numbered(2, 5))
    displace(journal.storage.url)
    there = values_of(journal)
    with pytest.raises(LaneTakenError, match="has another writer"):
        writer.append(numbered(2, 5))
    assert values_of(journal) == there


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
    with pytest.raises(OSError, match="the file system wrote 0 bytes"):
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
    append(journal, 2, 2)
    path = folder(journal) / FIRST
    data = path.read_bytes()
    path.write_bytes(data[:200] + b"x" + data[201:])
    damaged = re.escape(f"{path} (offset 0 of lane 0) is damaged from byte 0 on")
    for _ in range(2):
        with pytest.raises(CorruptionError, match=damaged):
            journal.writer(0)
    path.write_bytes(data)
    journal.writer(0).close()


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
        with pytest.raises(OptionError, match="must be a whole number from 0 to 99999"):
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
    with pytest.raises(OptionError, match=r"A block of 4 records .*; append 1 to 3 records"):
        writer.append(numbered(2, 6))
    assert writer.append(numbered(2, 5)).count == 3


def test_a_lane_has_a_last_offset(journal: Journal) -> None:
    journal.writer(0).close()
    (folder(journal) / f"{2**63 - 3:020d}.segment").touch()
    with journal.writer(0) as writer:
        with pytest.raises(JournalError, match="has used all its offsets"):
            writer.append(numbered(0, 3))
        writer.append(numbered(0, 2))


def test_a_lane_without_its_last_segment_is_not_gone_on_with(
    journal: Journal, writer: LaneWriter, disk: FailingDisk
) -> None:
    disk.fail, disk.then = "sync", ["open"]
    with pytest.raises(JournalError):
        writer.append(numbered(2, 3))
    (folder(journal) / FIRST).unlink()
    with pytest.raises(JournalError, match="which ended at offset 2, was deleted or truncated"):
        writer.append(numbered(2, 3))


@pytest.mark.parametrize("then", ["removed", "replaced", "moved", "moved and replaced"])
def test_nothing_is_acknowledged_in_a_file_that_has_lost_its_name(
    journal: Journal, writer: LaneWriter, then: str
) -> None:
    """The writer goes on in what is there under the name, if that is all of it."""
    place, path = Path(journal.storage.url), folder(journal) / FIRST
    end = writer.end
    if then.startswith("moved"):
        place.rename(place.with_name("elsewhere"))
        if then == "moved and replaced":
            shutil.copytree(place.with_name("elsewhere"), place)
    else:
        data = path.read_bytes()
        path.unlink()
        if then == "replaced":
            path.write_bytes(data)
    with pytest.raises(JournalError, match="could not be made durable"):
        writer.append(numbered(end, end + 1))
    if then.endswith("replaced"):
        assert writer.append(numbered(end, end + 1)).start == end
        assert values_of(journal) == numbers(range(end + 1))
    else:
        with pytest.raises(JournalError, match="deleted or truncated by another program"):
            writer.append(numbered(end, end + 1))


def test_of_many_segments_the_last_two_at_most_are_read_when_a_lane_is_opened(
    journal: Journal,
) -> None:
    with segments_of(1):
        append(journal, *[1] * 64)
    for path in sorted(folder(journal).glob("*.segment"))[:-2]:
        path.write_bytes(b"unreadable")
    with journal.writer(0) as writer:
        assert writer.end == 64
