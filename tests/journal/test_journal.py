import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.samples import (
    NOW_MS,
    append,
    folder,
    journal_at,
    numbers,
    segments_of,
    values_of,
)

from headrace.core.ranges import OffsetRange
from headrace.errors import (
    CorruptionError,
    DataLossError,
    JournalError,
    NoJournalError,
    OptionError,
)
from headrace.journal import ARROW_SCHEMA, Journal, Records, repair
from headrace.journal.block import Compression
from headrace.journal.storage.local import LocalStorage

FIRST: Final = "00000000000000000000.segment"


@pytest.fixture
def apart(tmp_path: Path) -> Journal:
    """The same, with a segment for each block."""
    made = journal_at(tmp_path / "orders")
    with segments_of(1):
        append(made, 3, 7, 2)
    return made


def test_a_journal_is_what_its_folder_says(tmp_path: Path) -> None:
    made = Journal.open(str(tmp_path / "a/b/orders"), create=True)
    assert made.name == "orders"
    assert made.lanes() == []
    assert made.bounds() == {}
    again = Journal.open(f"file://{tmp_path}/a/b/orders/", create=True)
    assert (again.name, again.id) == ("orders", made.id)
    assert Journal.open(str(tmp_path / "orders"), create=True).id != made.id


def test_there_is_no_journal_where_none_was_made(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="There is no journal"):
        Journal.open(str(tmp_path / "orders"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "http://host/orders",
            "http:// URLs are not supported for a journal; write a path, file:///path, s3://",
        ),
        ("file://orders", "no absolute path"),
        ("a/..", "journal's name '..'"),
        ("", "journal's name ''"),
        ("my orders", "journal's name 'my orders'"),
    ],
)
def test_other_urls_are_refused(url: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Journal.open(url, create=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, r"journal\.json is damaged") for text in ("", "{", "[]", '{"id": "00"}')),
        ('{"format": 2, "id": 5}', r"journal\.json is damaged"),
        ('{"format": 3, "id": "00"}', "reads format 2 with 16"),
        ('{"format": 2, "id": "00"}', "reads format 2 with 16"),
        ('{"format": 1, "id": "00"}', r"orders has format 1, with one file per block"),
    ],
)
def test_an_identity_that_is_damaged_or_of_another_format_is_refused(
    journal: Journal, text: str, says: str
) -> None:
    (folder(journal).parent / "journal.json").write_text(text)
    with pytest.raises(CorruptionError, match=says):
        Journal.open(journal.storage.url, create=True)


@pytest.mark.parametrize("create", [True, False])
def test_a_lost_identity_is_said_and_not_recreated_over_lanes(
    journal: Journal, create: bool
) -> None:
    (folder(journal).parent / "journal.json").unlink()
    with pytest.raises(CorruptionError, match=r"journal\.json is missing, although lane 0 exists"):
        Journal.open(journal.storage.url, create=create)


def test_what_is_listed_is_what_was_appended(journal: Journal) -> None:
    journal.writer(7).close()
    (folder(journal).parent / "notes").mkdir()
    assert journal.lanes() == [0, 7]
    assert journal.bounds() == {0: (0, 12), 7: (0, 0)}
    assert journal.blocks(7) == []
    assert (journal.firsts(0), journal.firsts(7)) == ([0], [])
    blocks = journal.blocks(0)
    assert [(block.first, block.until) for block in blocks] == [(0, 3), (3, 10), (10, 12)]
    (segment,) = journal.segments(0)
    size = (folder(journal) / FIRST).stat().st_size
    assert sum(block.stored_bytes for block in blocks) == segment.stored_bytes == size
    assert (segment.first, segment.until, segment.blocks) == (0, 12, 3)
    assert segment.written_ms > NOW_MS
    assert all(block.created_ms == NOW_MS for block in blocks)


@given(
    data=st.data(),
    ends=st.lists(st.integers(1, 40), min_size=1, max_size=6, unique=True).map(sorted),
    compression=st.sampled_from(["lz4", "zstd", "none"]),
)
def test_any_offsets_are_read_with_any_columns(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    ends: list[int],
    compression: Compression,
) -> None:
    journal = journal_at(tmp_path_factory.mktemp("j") / "orders")
    append(journal, *(b - a for a, b in pairwise([0, *ends])), compression=compression)
    start = data.draw(st.integers(0, ends[-1]))
    until = data.draw(st.integers(start, ends[-1]))
    columns = data.draw(st.lists(st.sampled_from(ARROW_SCHEMA.names), min_size=1, unique=True))
    batches = list(journal.read(OffsetRange("orders", 0, start, until), columns))
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    rows = pa.Table.from_batches(batches, schema=schema)
    rows.validate(full=True)
    expected = {
        "key": [None] * (until - start),
        "value": numbers(range(start, until)),
        "topic": ["orders"] * (until - start),
        "partition": [0] * (until - start),
        "offset": list(range(start, until)),
        "timestamp": [NOW_MS * 1000] * (until - start),
        "timestampType": [0] * (until - start),
        "headers": [None] * (until - start),
    }
    for name in columns:
        column = rows.column(name)
        got = column.cast(pa.int64()) if name == "timestamp" else column
        assert got.to_pylist() == expected[name]


def test_headers_and_keys_are_read(journal: Journal) -> None:
    some = Records.of([b"v"], keys=[b"k"], headers=[[("h", b"1")]], ids=["id"], timestamp_ms=5)
    with journal.writer(1) as writer:
        offsets = writer.append(some)
    (batch,) = journal.read(offsets, ["key", "headers"])
    assert batch.to_pylist() == [{"key": b"k", "headers": [{"key": "h", "value": b"1"}]}]
    assert journal.records(1, 0) == some


def test_nothing_is_copied_where_nothing_is_compressed(tmp_path: Path) -> None:
    journal = journal_at(tmp_path / "orders")
    append(journal, 100_000, compression="none")
    before = pa.total_allocated_bytes()
    (batch,) = journal.read(OffsetRange("orders", 0, 0, 100_000), ["value"])
    assert batch.nbytes > 500_000
    assert pa.total_allocated_bytes() - before < 10_000


def test_what_cannot_be_read_is_refused_at_once(journal: Journal) -> None:
    with pytest.raises(OptionError, match="no column 'id'; its columns are key, value, topic"):
        journal.read(OffsetRange("orders", 0, 0, 1), ["id"])
    with pytest.raises(OptionError, match="do not belong to the journal"):
        journal.read(OffsetRange("payments", 0, 0, 1))
    with pytest.raises(OptionError, match=r"lane 100000"):
        journal.read(OffsetRange("orders", 100_000, 0, 1))
    with pytest.raises(OptionError, match=r"lane '../0'"):
        journal.blocks("../0")  # type: ignore[arg-type]


def test_offsets_behind_the_end_are_not_there(journal: Journal) -> None:
    batches = journal.read(OffsetRange("orders", 0, 10, 13))
    assert next(batches).num_rows == 2
    for lane, offset, end, left in (
        (0, 12, 12, batches),
        (0, 50, 12, journal.read(OffsetRange("orders", 0, 50, 51))),
        (3, 0, 0, journal.read(OffsetRange("orders", 3, 0, 1))),
    ):
        says = rf"Offset {offset} of lane {lane} .* does not exist: the lane ends at {end}"
        with pytest.raises(JournalError, match=says):
            next(left)


def test_a_gap_is_told_with_file_and_offset(apart: Journal) -> None:
    path = folder(apart) / f"{3:020d}.segment"
    path.unlink()
    batches = apart.read(OffsetRange("orders", 0, 1, 12))
    assert next(batches).num_rows == 2
    with pytest.raises(
        CorruptionError, match=rf"Offset 3 of .* is missing .{folder(apart) / FIRST}"
    ):
        next(batches)
    with pytest.raises(CorruptionError, match=r"Offset 5 of .* is missing"):
        next(apart.read(OffsetRange("orders", 0, 5, 6)))
    assert len(list(apart.read(OffsetRange("orders", 0, 11, 12)))) == 1


def test_a_segment_under_another_s_name_is_told(apart: Journal) -> None:
    path = folder(apart) / f"{12:020d}.segment"
    (folder(apart) / f"{3:020d}.segment").rename(path)
    says = rf"{path} \(offset 12 of lane 0\) is damaged .* begins at offset 3"
    with pytest.raises(CorruptionError, match=says):
        apart.writer(0)
    with pytest.raises(CorruptionError, match=r"Offset 3 of .* is missing"):
        next(apart.read(OffsetRange("orders", 0, 3, 4)))


def test_a_segment_of_another_journal_or_lane_is_told(journal: Journal, tmp_path: Path) -> None:
    other = journal_at(tmp_path / "other")
    append(other, 5)
    journal.writer(1).close()
    for of, says in ((folder(other), "another journal"), (folder(journal), "lane 0")):
        target = folder(journal, 1) / FIRST
        target.unlink(missing_ok=True)
        os.link(of / FIRST, target)
        before = target.read_bytes()
        with pytest.raises(
            CorruptionError, match=rf"{target} .* a frame of {says}; the file was not changed"
        ):
            journal.writer(1)
        assert target.read_bytes() == before
        with pytest.raises(JournalError, match="does not exist: the lane ends at 0"):
            next(journal.read(OffsetRange("orders", 1, 0, 1)))


UNSAID, OTHERS = "does not say which offsets are lost", "declares the offsets"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", UNSAID),
        ("{}", UNSAID),
        ("5", UNSAID),
        ('{"first": 3, "until": "9", "reason": ""}', UNSAID),
        ('{"first": 4, "until": 10, "reason": ""}', OTHERS),
        ('{"first": 3, "until": 3, "reason": ""}', OTHERS),
        ('{"first": 3, "until": 2, "reason": ""}', OTHERS),
    ],
)
def test_a_loss_that_does_not_say_what_is_lost_there_is_damaged(
    journal: Journal, text: str, says: str
) -> None:
    (folder(journal) / "00000000000000000003.lost").write_text(text)
    with pytest.raises(CorruptionError, match=says):
        journal.lost(0)


def test_a_block_that_is_not_there_has_no_records(journal: Journal) -> None:
    with pytest.raises(JournalError, match=r"No block of lane 0 .* begins at offset 4; "):
        journal.records(0, 4)


class Counting(LocalStorage):
    """Counts listings and files that are opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed = 0
        self.opened: list[str] = []
        self.bytes = 0

    def names(self, folder: str) -> list[str]:
        self.listed += 1
        return super().names(folder)

    def read(self, path: str, at: int = 0, size: int | None = None) -> pa.Buffer:
        self.opened.append(path)
        found = super().read(path, at, size)
        self.bytes += found.size
        return found

    def settled(self, path: str) -> bytes:
        self.opened.append(path)
        return super().settled(path)


def test_what_a_lane_costs_does_not_grow_with_its_blocks(tmp_path: Path) -> None:
    storage = Counting(tmp_path / "orders")
    journal = Journal.in_storage(storage, "orders", create=True)
    with segments_of(4_000):
        append(journal, *[1] * 100)
    segments = journal.segments(0)
    assert len(segments) > 5
    last = f"0/{segments[-1].first:020d}.segment"
    for look in (journal.bounds, lambda: journal.writer(0).close()):
        storage.opened.clear()
        look()
        assert {*storage.opened} == {last}
    storage.opened.clear()
    assert journal.firsts(0) == [each.first for each in segments]
    assert storage.opened == []
    storage.listed = 0
    (batch,) = journal.read(OffsetRange("orders", 0, 40, 42))
    assert batch.num_rows == 2
    assert len({*storage.opened}) == 1
    assert storage.listed == 1


def test_a_block_costs_its_own_bytes(tmp_path: Path) -> None:
    storage = Counting(tmp_path / "orders")
    journal = Journal.in_storage(storage, "orders", create=True)
    append(journal, *[10_000] * 20, compression="none")
    journal.segments(0)  # which reads the headers
    storage.bytes = 0
    assert sum(batch.num_rows for batch in journal.read(OffsetRange("orders", 0, 5, 7))) == 2
    assert storage.bytes < 2 * journal.blocks(0)[0].stored_bytes


@pytest.mark.parametrize("left", [b"", b"{", bytes(100)])
def test_what_a_crash_leaves_of_a_new_journal_s_identity_is_made_anew(
    tmp_path: Path, left: bytes
) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "journal.json").write_bytes(left)
    with pytest.raises(NoJournalError, match="There is no journal"):
        Journal.open(str(tmp_path / "orders"))
    made = Journal.open(str(tmp_path / "orders"), create=True)
    assert Journal.open(str(tmp_path / "orders")).id == made.id


def test_a_lane_that_is_put_back_under_the_same_name_is_seen_anew(
    journal: Journal, tmp_path: Path
) -> None:
    """What is remembered of a segment is that of the frames that it has."""
    shutil.copytree(folder(journal), tmp_path / "copy")
    append(journal, 5)
    assert journal.bounds() == {0: (0, 17)}
    shutil.rmtree(folder(journal))
    shutil.copytree(tmp_path / "copy", folder(journal))
    assert journal.bounds() == {0: (0, 12)}
    with journal.writer(0) as writer:
        writer.append(Records.of([b"other"] * 9, timestamp_ms=NOW_MS))
    assert values_of(journal)[12:] == [b"other"] * 9


def test_of_two_who_make_a_journal_one_does(tmp_path: Path) -> None:
    class Slow(LocalStorage):
        def create(self) -> None:
            super().create()
            faster.append(Journal.open(str(tmp_path / "orders"), create=True))

    faster: list[Journal] = []
    slower = Journal.in_storage(Slow(tmp_path / "orders"), "orders", create=True)
    assert [slower.id] == [journal.id for journal in faster]


def test_segments_are_pruned_whole(apart: Journal) -> None:
    assert apart.remove_before(0, 9) == 3
    assert apart.bounds() == {0: (3, 12)}
    assert values_of(apart) == numbers(range(3, 12))
    with pytest.raises(
        DataLossError, match=r"Offset 2 of lane 0 .* was pruned; the lane begins at 3"
    ):
        next(apart.read(OffsetRange("orders", 0, 2, 5)))
    assert apart.remove_before(0, 2) == 3
    assert apart.remove_before(0, 100) == 10, "the last one says where the lane goes on"
    assert sorted(path.name for path in folder(apart).iterdir()) == [f"{10:020d}.segment", "lock"]


def test_whoever_asks_is_told_of_what_is_passed_over(apart: Journal) -> None:
    path = folder(apart) / "00000000000000000003.segment"
    path.rename(path.with_suffix(".away"))
    repair(apart)
    lost: list[tuple[str, str]] = []

    def note(missing: OffsetRange, why: str) -> None:
        lost.append((str(missing), why))

    def read(start: int, until: int) -> list[int]:
        lost.clear()
        batches = apart.read(OffsetRange("orders", 0, start, until), on_loss=note)
        return [row["offset"] for batch in batches for row in batch.to_pylist()]

    assert read(0, 12) == [0, 1, 2, 10, 11]
    ((missing, why),) = lost
    assert missing == "orders-0 [3, 10)"
    assert why.startswith("declared lost by a repair: ")
    assert (read(5, 8), lost[0][0]) == ([], "orders-0 [5, 8)")
    apart.remove_before(0, 10)
    assert (read(1, 12), lost) == ([10, 11], [("orders-0 [1, 10)", "lane 0 now begins at 10")])
