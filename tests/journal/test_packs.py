"""Packs: many small blocks are one file, whatever crashes, and nothing else is changed by that."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.journal.samples import append, folder, journal_at, numbered, numbers, records, values_of
from tests.journal.shim import Fast, Files, Recorder, crashes
from tests.journal.stories import append as append_told
from tests.journal.stories import explored, on_disk, opened
from tests.services.examples import examples

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError, JournalError
from headrace.journal import Journal, JournalFindingKind, Records, lost_records, repair, verify
from headrace.journal.block import HEADER_BYTES, Part
from headrace.journal.journal_log import first_at
from headrace.journal.packs import SMALL_BYTES, TOGETHER
from headrace.journal.storage import Entry, Prepared, Storage

LEAST: Final = 8
"""As few blocks a writer that is closed packs."""


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return journal_at(tmp_path / "orders")


def packs_of(journal: Journal) -> list[tuple[int, int]]:
    """The offsets of the packs of lane 0."""
    paths = sorted((folder(journal) / "packs").glob("*.pack"))
    return [(int(path.stem[:20]), int(path.stem[21:])) for path in paths]


def blocks_of(journal: Journal) -> list[int]:
    """The first offsets of the blocks of lane 0 that are files of their own."""
    return sorted(int(path.stem) for path in folder(journal).glob("*.block"))


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


def test_small_blocks_are_one_file_which_is_read_from_any_offset_to_any(journal: Journal) -> None:
    write(journal, 0, 100)
    assert (packs_of(journal), blocks_of(journal)) == ([(0, 100)], [])
    assert [(block.first, block.until) for block in journal.blocks(0)] == [(0, 100)]
    for start in range(0, 100, 7):
        for until in range(start + 1, 101, 13):
            assert sizes(journal, start, until) == [until - start]
    assert verify(journal).findings == ()
    assert journal.bounds() == {0: (0, 100)}


def test_a_writer_that_is_closed_packs_what_is_left(journal: Journal) -> None:
    write(journal, 0, LEAST - 1)
    write(journal, 7, 15)
    write(journal, 15, 15 + TOGETHER + 9)
    until = 15 + TOGETHER
    assert packs_of(journal) == [(7, 15), (15, until), (until, until + 9)]
    assert blocks_of(journal) == list(range(7))
    assert sizes(journal, 0, until + 9) == [*[1] * 7, 8, TOGETHER, 9]
    assert verify(journal).findings == ()


def test_large_blocks_are_not_packed_and_end_a_run(journal: Journal) -> None:
    with journal.writer(0) as writer:
        for number in range(40):
            large = Records.of([b"x" * (SMALL_BYTES + 1)], timestamp_ms=1)
            writer.append(large if number == 30 else numbered(number, number + 1))
    assert packs_of(journal) == [(31, 40)]
    assert len(values_of(journal)) == 40


def test_blocks_of_many_empty_records_are_not_small(journal: Journal) -> None:
    """In the file one takes next to nothing; many of them would take a gigabyte in memory."""
    with journal.writer(0) as writer:
        for _ in range(LEAST):
            writer.append(Records.of_lines(b"\n" * 1_000, timestamp_ms=1))
    assert packs_of(journal) == []


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocks=st.lists(records(least=1), min_size=LEAST, max_size=LEAST + 4))
def test_a_pack_has_all_that_its_blocks_had(tmp_path: Path, blocks: list[Records]) -> None:
    shutil.rmtree(tmp_path / "orders", ignore_errors=True)
    journal = journal_at(tmp_path / "orders")
    before, checksums = [], {}
    with journal.writer(0) as writer:
        for each in blocks:
            writer.append(each)
        before = [journal.records(0, block.first) for block in journal.blocks(0)]
        for offset in range(writer.end + 1):
            checksums[offset] = journal.look(0).checksum_before(offset)
    assert packs_of(journal) == [(0, len(checksums) - 1)]
    assert journal.records(0, 0) == Records.concat(before)
    look = journal.look(0)
    assert {offset: look.checksum_before(offset) for offset in checksums} == checksums


# A crash.


@pytest.mark.integration
def test_no_crash_while_blocks_are_packed_loses_a_record_or_has_it_twice(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    recorder = Recorder(base)
    journal = opened(base, recorder)
    recorder.mark("made", journal.id)
    append_told(journal, recorder, *[1] * LEAST)
    assert packs_of(journal) == [(0, LEAST)]
    assert list(explored(recorder, tmp_path)) == []


@pytest.mark.integration
def test_after_a_crash_while_blocks_are_packed_the_next_writer_finishes(tmp_path: Path) -> None:
    for base in _crashed(tmp_path):
        journal = journal_at(base / "a/orders")
        until = journal.bounds()[0][1]
        assert values_of(journal) == numbers(range(until))
        copied = Journal.in_storage(Objects(base / "a/orders"), "orders")
        assert (values_of(copied), copied.bounds()) == (values_of(journal), journal.bounds())
        assert sum(part.count for _, part in journal.read_back(0)) == until
        for start in range(until):  # also the positions that were issued before
            sizes(journal, start, until)
        journal.writer(0).close()
        for first, end in packs_of(journal):
            assert not [block for block in blocks_of(journal) if first <= block < end]
        assert values_of(journal) == numbers(range(until))
        assert verify(journal).findings == ()


class Objects(Storage):
    """A copy of a journal in an object store, to be read: folders are prefixes of names."""

    def __init__(self, root: Path) -> None:
        self._objects = {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file()
        }

    @property
    def url(self) -> str:
        return "s3://bucket/orders"

    def create(self) -> None:
        raise AssertionError

    def create_folder(self, folder: str) -> None:
        raise AssertionError(folder)

    def entries(self, folder: str) -> list[Entry]:
        raise AssertionError(folder)

    def prepare(self, path: str, parts: Sequence[Part]) -> Prepared:
        raise AssertionError(path)

    def remove(self, folder: str, names: Sequence[str]) -> None:
        raise AssertionError(folder)

    def set_aside(self, path: str, to: str) -> None:
        raise AssertionError(path)

    def folders(self) -> list[str]:
        return sorted({path.partition("/")[0] for path in self._objects if "/" in path})

    def names(self, folder: str) -> list[str]:
        below = [path[len(folder) + 1 :] for path in self._objects if path.startswith(f"{folder}/")]
        return sorted({path.partition("/")[0] for path in below})

    def read(self, path: str) -> pa.Buffer:
        return pa.py_buffer(self._object(path))

    def read_start(self, path: str, size: int) -> tuple[bytes, int]:
        return self._object(path)[:size], len(self._object(path))

    def _object(self, path: str) -> bytes:
        if path not in self._objects:
            raise FileNotFoundError(path)
        return self._objects[path]


def _crashed(tmp_path: Path) -> Iterator[Path]:
    """What a crash between any two steps of packing leaves, in each way that a disk may have it."""
    base = tmp_path / "base"
    base.mkdir()
    append(opened(base, Fast()), *[1] * (LEAST - 1))
    recorder = Recorder(base)
    append_told(opened(base, recorder), recorder, *[1] * LEAST)
    seen: set[Files] = set()
    for files, _ in crashes(recorder, since="acknowledged"):
        if files not in seen and any(path.name == "packs" for path, _ in files.held):
            seen.add(files)
            with on_disk(files, tmp_path) as crashed:
                yield crashed
    assert len(seen) > 2**LEAST, "each choice of blocks that are gone"


class Pausing(Fast):
    """Lets a reader in before each block is removed, and before a pack has its name."""

    def __init__(self) -> None:
        self.look: Callable[[], None] = lambda: None

    def unlink(self, path: Path) -> None:
        self.look()
        super().unlink(path)

    def link(self, path: Path, to: Path) -> None:
        self.look()
        super().link(path, to)


def test_a_reader_goes_on_while_blocks_are_packed(tmp_path: Path) -> None:
    disk = Pausing()
    journal = journal_at(tmp_path / "orders", disk)
    reader = journal_at(tmp_path / "orders")
    with journal.writer(0) as writer:
        for number in range(2 * LEAST):
            writer.append(numbered(number, number + 1))
        offsets = OffsetRange(journal.name, 0, 0, 2 * LEAST)
        reads = [reader.read(offsets) for _ in range(2 * LEAST)]
        values = [
            [b for one in range(n) for b in next(read)["value"].to_pylist()]
            for n, read in enumerate(reads)
        ]
        index, looks = reader.look(0), []

        def look() -> None:
            sizes(reader, 3, 2 * LEAST)
            assert verify(reader).findings == ()
            assert reader.bounds() == {0: (0, 2 * LEAST)}
            looks.append(index.checksum_before(5))

        disk.look = look
    assert packs_of(journal) == [(0, 2 * LEAST)]
    assert len(looks) > 2 * LEAST
    assert len(set(looks)) == 1
    for value, read in zip(values, reads, strict=True):
        rest = [each for batch in read for each in batch["value"].to_pylist()]
        assert [*value, *rest] == numbers(range(2 * LEAST))


def test_a_pack_stays_whose_first_blocks_were_pruned_before_it_was_made(journal: Journal) -> None:
    with journal.writer(0) as writer:
        for number in range(20):
            writer.append(numbered(number, number + 1))
        assert journal.remove_before(0, 12) == 12
    assert (packs_of(journal), journal.bounds()) == ([(0, 20)], {0: (12, 20)})
    assert values_of(journal) == numbers(range(12, 20))
    assert [(block.first, block.until) for block in journal.blocks(0)] == [(12, 20)]
    found = verify(journal)
    assert (found.findings, found.lanes[0].records) == ((), 8)
    with pytest.raises(DataLossError, match="was pruned"):
        list(journal.read(OffsetRange(journal.name, 0, 11, 20)))
    write(journal, 20, 21)
    assert journal.remove_before(0, 20) == 20
    assert (packs_of(journal), values_of(journal)) == ([], numbers(range(20, 21)))


# Damage.

DAMAGE: Final = {
    "header": 50,
    "records": HEADER_BYTES + 40,
    "ends": -20,
    "last": -1,
}


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", [*DAMAGE, "truncated", "empty", "deleted"])
def test_a_damaged_pack_is_said_and_its_loss_is_counted(journal: Journal, how: str) -> None:
    write(journal, 0, 10)
    write(journal, 10, 30)
    write(journal, 30, 31)
    [_, path] = sorted((folder(journal) / "packs").glob("*.pack"))
    if how in DAMAGE:
        _flip(path, DAMAGE[how])
    elif how == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if how == "truncated" else b"")
    found = verify(journal)
    [finding] = found.findings
    is_gone = how == "deleted"
    kind = JournalFindingKind.GAP if is_gone else JournalFindingKind.DAMAGED
    assert (finding.kind, finding.first, finding.until) == (kind, 10, 30)
    assert is_gone or finding.path == f"0/packs/{path.name}"
    assert lost_records(found.findings) == 20
    assert repair(journal) == found.findings
    assert verify(journal).whole
    assert [(each.first, each.until) for each in journal.lost(0)] == [(10, 30)]
    assert values_of(journal) == numbers(range(10), range(30, 31))
    assert repair(journal) == ()
    append(journal, 1)
    assert journal.bounds() == {0: (0, 32)}


def test_blocks_that_a_crash_has_left_are_read_where_their_pack_is_damaged(
    journal: Journal, tmp_path: Path
) -> None:
    with journal.writer(0) as writer:
        for number in range(12):
            writer.append(numbered(number, number + 1))
        shutil.copytree(folder(journal), tmp_path / "blocks")
    for path in (tmp_path / "blocks").glob("*.block"):
        shutil.copy(path, folder(journal))
    assert verify(journal).findings == ()
    [path] = (folder(journal) / "packs").glob("*.pack")
    _flip(path, HEADER_BYTES + 40)
    with pytest.raises(JournalError, match="is damaged"):
        journal.writer(0)
    assert blocks_of(journal) == list(range(12)), "they are not removed for a damaged pack"
    assert lost_records(repair(journal)) == 0
    assert verify(journal).findings == ()
    assert values_of(journal) == numbers(range(12))


def test_where_no_pack_can_be_made_blocks_are_written_all_the_same(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    with journal.writer(0) as writer:
        (folder(journal) / "packs").write_text("in the way")
        for number in range(2 * TOGETHER):
            writer.append(numbered(number, number + 1))
    (folder(journal) / "packs").unlink()
    assert values_of(journal) == numbers(range(2 * TOGETHER))
    assert caplog.text.count("cannot be packed, and are read one by one") == 1


def test_records_are_read_back_from_packs(journal: Journal) -> None:
    write(journal, 0, 50)
    write(journal, 50, 55)
    parts = list(journal.read_back(0))
    assert [first for first, _ in parts] == [*range(54, 49, -1), 0]
    values = [part.batch.column("id").to_pylist() for _, part in reversed(parts)]
    assert [each for part in values for each in part] == [f"{number}" for number in range(55)]


def test_a_time_within_a_pack_is_where_its_records_have_it(journal: Journal) -> None:
    with journal.writer(0) as writer:
        for number in range(20):
            writer.append(Records.of([b"a"], timestamp_ms=1_000 + number))
    assert [first_at(journal, 0, ms) for ms in (0, 1_007, 1_019, 1_020)] == [0, 7, 19, None]
