"""Packs: many small blocks read as few large ones, with nothing else changed by them."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.journal.samples import folder, journal_at, numbered, numbers, values_of
from tests.journal.shim import Fast

from headrace.core.ranges import OffsetRange
from headrace.journal import Journal, repair, verify
from headrace.journal.packs import SMALL_BYTES, TOGETHER
from headrace.journal.records import Records

SECOND = TOGETHER * TOGETHER


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return journal_at(tmp_path / "orders")


def packs_of(journal: Journal) -> list[tuple[int, int]]:
    """The offsets of the packs of lane 0."""
    found = sorted((folder(journal).parent / ".packs-0").glob("*.pack"))
    return [(int(path.stem[:20]), int(path.stem[21:])) for path in found]


def write(journal: Journal, start: int, until: int) -> None:
    """A block for each number."""
    with journal.writer(0) as writer:
        for number in range(start, until):
            writer.append(numbered(number, number + 1))


def sizes(journal: Journal, start: int, until: int) -> list[int]:
    """Return the sizes of the batches that a read gives; assert that their records are right."""
    counts = []
    for batch in journal.read(OffsetRange(journal.name, 0, start, until)):
        assert batch.column("value").to_pylist() == numbers(range(start, start + batch.num_rows))
        assert batch.column("offset").to_pylist() == list(range(start, start + batch.num_rows))
        start += batch.num_rows
        counts.append(batch.num_rows)
    assert start == until
    return counts


@pytest.mark.integration
def test_small_blocks_are_read_together_from_any_offset_to_any(journal: Journal) -> None:
    write(journal, 0, 200)
    assert packs_of(journal) == [(0, 200)]
    assert len(journal.blocks(0)) == 200
    for start in range(0, 200, 7):
        for until in range(start + 1, 201, 13):
            assert len(sizes(journal, start, until)) <= 20
    assert sizes(journal, 0, 200) == [1, 1, 1, 1, 196]
    assert verify(journal).whole


def test_a_writer_that_is_closed_packs_what_is_left(journal: Journal) -> None:
    write(journal, 0, 7)
    write(journal, 7, 15)
    with journal.writer(0) as writer:
        for number in range(15, 15 + 2 * TOGETHER + 9):
            writer.append(numbered(number, number + 1))
    assert packs_of(journal) == [(7, 15), (15, 152)]
    assert sizes(journal, 0, 152) == [*[1] * 8, 7, 137]


@pytest.mark.integration
def test_packs_are_joined_into_larger_ones(journal: Journal) -> None:
    write(journal, 0, SECOND + 70)
    assert packs_of(journal) == [(0, SECOND), (SECOND, SECOND + 64)]
    assert sizes(journal, 0, SECOND + 70)[:6] == [1, 1, 1, 1, SECOND - 4, 64]


class Watched(Fast):
    """Notes which threads sync files, and which folders."""

    def __init__(self) -> None:
        super().__init__()
        self.syncing: set[str] = set()
        self.folders: set[str] = set()

    def sync(self, descriptor: int) -> None:
        self.syncing.add(threading.current_thread().name)
        super().sync(descriptor)

    def sync_folder(self, path: Path) -> None:
        self.folders.add(path.name)
        super().sync_folder(path)


@pytest.mark.integration
def test_no_pack_is_synced_for_records_would_wait_for_the_disk(tmp_path: Path) -> None:
    disk = Watched()
    journal = journal_at(tmp_path / "orders", disk)
    write(journal, 0, SECOND + 70)
    assert packs_of(journal) == [(0, SECOND), (SECOND, SECOND + 64)]
    assert disk.syncing == {threading.current_thread().name}, "the writer's own alone"
    assert ".packs-0" not in disk.folders


def test_large_blocks_are_not_packed_and_end_a_run(journal: Journal) -> None:
    with journal.writer(0) as writer:
        for number in range(2 * TOGETHER):
            if number == TOGETHER // 2:
                writer.append(Records.of([b"x" * (SMALL_BYTES + 1)], timestamp_ms=1))
            else:
                writer.append(numbered(number, number + 1))
    assert packs_of(journal) == [(33, 128)]
    assert len(values_of(journal)) == 2 * TOGETHER


def test_a_pack_is_looked_for_whatever_size_the_blocks_before_it_have(journal: Journal) -> None:
    """Whether a block is small its writer alone judges."""
    large = [b"%d" % number + b"x" * SMALL_BYTES for number in range(4)]
    with journal.writer(0) as writer:
        for value in large:
            writer.append(Records.of([value], timestamp_ms=1))
        for number in range(4, 4 + TOGETHER):
            writer.append(numbered(number, number + 1))
    read = [*journal.read(OffsetRange(journal.name, 0, 0, 4 + TOGETHER))]
    assert [batch.num_rows for batch in read] == [1, 1, 1, 1, TOGETHER]
    assert values_of(journal) == [*large, *numbers(range(4, 4 + TOGETHER))]


def test_blocks_of_many_empty_records_are_not_small(journal: Journal) -> None:
    """In the file one takes next to nothing; 64 of them would take a gigabyte in memory."""
    with journal.writer(0) as writer:
        for _ in range(TOGETHER + 1):
            writer.append(Records.of_lines(b"\n" * 1_000, timestamp_ms=1))
    assert packs_of(journal) == []


@pytest.mark.parametrize("until", [90, 100, 130, 131])
def test_a_pack_of_another_life_of_the_lane_is_not_read(
    journal: Journal, tmp_path: Path, until: int
) -> None:
    """A backup of the lane was put back, and written on: the same offsets, other records."""
    write(journal, 0, 32)
    shutil.copytree(folder(journal), tmp_path / "backup")
    write(journal, 32, 130)
    assert packs_of(journal) == [(0, 32), (32, 130)]
    shutil.rmtree(folder(journal))
    shutil.copytree(tmp_path / "backup", folder(journal))
    values = [b"%d" % (1_000 + number) for number in range(32, until)]
    if until in {100, 131}:
        values[20] = b"x" * (SMALL_BYTES + 1)  # so that no pack takes the other one's place
    with journal.writer(0) as writer:
        for value in values:
            writer.append(Records.of([value], timestamp_ms=1))
    assert values_of(journal) == [*numbers(range(32)), *values]


def damaged(path: Path) -> Iterator[None]:
    """A pack, in each of some ways."""
    whole = path.read_bytes()
    for place in range(0, len(whole), 41):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        yield
        path.write_bytes(whole[:place])
        yield
    path.unlink()
    yield


@pytest.mark.nightly
def test_instead_of_a_damaged_pack_the_blocks_are_read(journal: Journal) -> None:
    write(journal, 0, 70)
    [path] = (folder(journal).parent / ".packs-0").glob("*.pack")
    for _ in damaged(path):
        assert sizes(journal, 0, 70) == [1] * 70


def test_what_was_pruned_is_not_restored(journal: Journal) -> None:
    write(journal, 0, 200)
    journal.remove_before(0, 130)
    assert packs_of(journal) == [(0, 200)]
    (folder(journal) / "00000000000000000150.block").write_bytes(b"")
    assert [finding.first for finding in repair(journal)] == [150]
    assert values_of(journal) == numbers(range(130, 200))
    assert journal.bounds() == {0: (130, 200)}


def test_where_no_pack_can_be_made_blocks_are_written_all_the_same(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    with journal.writer(0) as writer:
        for number in range(TOGETHER - 1):
            writer.append(numbered(number, number + 1))
        (folder(journal).parent / ".packs-0").write_text("in the way")
        for number in range(TOGETHER - 1, 3 * TOGETHER):
            writer.append(numbered(number, number + 1))
    assert values_of(journal) == numbers(range(3 * TOGETHER))
    assert caplog.text.count("cannot be packed, and are read one by one") == 1


def test_what_is_read_back_comes_from_packs_where_there_are_some(journal: Journal) -> None:
    write(journal, 0, 150)
    write(journal, 150, 155)
    parts = list(journal.read_back(0))
    assert [first for first, _ in parts] == [*range(154, 149, -1), 0]
    values = [records.batch.column("id").to_pylist() for _, records in reversed(parts)]
    assert [each for part in values for each in part] == [f"{number}" for number in range(155)]
