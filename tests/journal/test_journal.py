import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.samples import NOW_MS, append, folder, journal_at, numbers, values_of

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError, DataLossError, JournalError, OptionError
from headrace.journal import ARROW_SCHEMA, Journal, Records, repair
from headrace.journal.block import Compression, Part
from headrace.journal.storage.local import LocalStorage


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
        ("http://host/orders", "http:// URLs; a path, file:///path, s3://"),
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
        ('{"format": 1, "id": 5}', r"journal\.json is damaged"),
        ('{"format": 2, "id": "00"}', "reads format 1 with 16"),
        ('{"format": 1, "id": "00"}', "reads format 1 with 16"),
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
    with pytest.raises(CorruptionError, match=r"journal\.json is missing, although .* lane 0"):
        Journal.open(journal.storage.url, create=create)


def test_what_is_listed_is_what_was_appended(journal: Journal) -> None:
    journal.writer(7).close()
    (folder(journal).parent / "notes").mkdir()
    assert journal.lanes() == [0, 7]
    assert journal.bounds() == {0: (0, 12), 7: (0, 0)}
    assert journal.blocks(7) == []
    assert (journal.firsts(0), journal.firsts(7)) == ([0, 3, 10], [])
    blocks = journal.blocks(0)
    assert [(block.first, block.until) for block in blocks] == [(0, 3), (3, 10), (10, 12)]
    sizes = [path.stat().st_size for path in sorted(folder(journal).glob("*.block"))]
    assert [block.stored_bytes for block in blocks] == sizes
    assert all(block.created_ms > NOW_MS for block in blocks)


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
    with pytest.raises(OptionError, match="no column 'id'; it has key, value, topic"):
        journal.read(OffsetRange("orders", 0, 0, 1), ["id"])
    with pytest.raises(OptionError, match="not offsets of the journal"):
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
        says = rf"Offset {offset} of lane {lane} .* is not there: it ends at {end}"
        with pytest.raises(JournalError, match=says):
            next(left)


def test_a_gap_is_told_with_file_and_offset(journal: Journal) -> None:
    path = folder(journal) / "00000000000000000003.block"
    path.unlink()
    batches = journal.read(OffsetRange("orders", 0, 1, 12))
    assert next(batches).num_rows == 2
    with pytest.raises(CorruptionError, match=f"holds offset 3 .{path}"):
        next(batches)
    with pytest.raises(CorruptionError, match=r"holds offset 5"):
        next(journal.read(OffsetRange("orders", 0, 5, 6)))
    assert len(list(journal.read(OffsetRange("orders", 0, 11, 12)))) == 1


def test_a_lane_whose_first_block_is_missing_does_not_begin_later(journal: Journal) -> None:
    (folder(journal) / "00000000000000000000.block").unlink()
    assert journal.bounds() == {0: (0, 12)}
    with pytest.raises(CorruptionError, match=r"holds offset 0"):
        next(journal.read(OffsetRange("orders", 0, 0, 12)))


def test_a_block_under_another_s_name_is_told(journal: Journal) -> None:
    (folder(journal) / "00000000000000000003.block").rename(
        folder(journal) / "00000000000000000012.block"
    )
    with pytest.raises(
        CorruptionError, match=r"12.block .* is not the block of its name.* \[3, 10"
    ):
        journal.bounds()
    with pytest.raises(CorruptionError, match="is not the block of its name"):
        journal.writer(0)


def test_a_block_of_another_journal_or_lane_is_told(journal: Journal, tmp_path: Path) -> None:
    other = journal_at(tmp_path / "other")
    append(other, 5)
    journal.writer(1).close()
    for lane, says in ((0, "of another journal"), (1, "of another journal")):
        target = folder(journal).parent / str(lane) / "00000000000000000000.block"
        target.unlink(missing_ok=True)
        os.link(folder(other) / target.name, target)
        with pytest.raises(CorruptionError, match=says):
            next(journal.read(OffsetRange("orders", lane, 0, 1)))
    target.unlink()
    os.link(folder(journal) / "00000000000000000003.block", target)
    with pytest.raises(CorruptionError, match=r"it holds lane 0 \[3, 10\);"):
        next(journal.read(OffsetRange("orders", 1, 0, 1)))


UNSAID, OTHERS = "does not say which offsets are lost", "is about the offsets"


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

    def names(self, folder: str) -> list[str]:
        self.listed += 1
        return super().names(folder)

    def read(self, path: str) -> pa.Buffer:
        self.opened.append(path)
        return super().read(path)

    def read_start(self, path: str, size: int) -> tuple[bytes, int]:
        self.opened.append(path)
        return super().read_start(path, size)


def test_what_a_lane_costs_does_not_grow_with_its_blocks(tmp_path: Path) -> None:
    storage = Counting(tmp_path / "orders")
    journal = Journal.in_storage(storage, "orders", create=True)
    for _ in range(20):  # of fewer than 8 blocks no pack is made
        append(journal, *[1] * 5)
    last = "0/00000000000000000099.block"
    for look in (journal.bounds, lambda: journal.blocks(0), lambda: journal.writer(0).close()):
        storage.opened.clear()
        look()
        assert storage.opened == [last]
    storage.opened.clear()
    assert journal.firsts(0) == list(range(100))
    assert storage.opened == []
    storage.listed = 0
    assert len(list(journal.read(OffsetRange("orders", 0, 40, 43)))) == 3
    assert storage.opened == [f"0/{first:020d}.block" for first in (40, 41, 42)]
    assert storage.listed == 0


def test_of_two_who_make_a_journal_one_does(tmp_path: Path) -> None:
    class Slow(LocalStorage):
        def put(self, path: str, parts: Sequence[Part]) -> None:
            faster.append(Journal.open(str(tmp_path / "orders"), create=True))
            super().put(path, parts)

    faster: list[Journal] = []
    slower = Journal.in_storage(Slow(tmp_path / "orders"), "orders", create=True)
    assert [slower.id] == [journal.id for journal in faster]


def test_blocks_are_pruned_whole(journal: Journal) -> None:
    assert journal.remove_before(0, 9) == 3
    assert journal.bounds() == {0: (3, 12)}
    assert values_of(journal) == numbers(range(3, 12))
    with pytest.raises(DataLossError, match=r"Offset 2 of lane 0 .* was pruned: it begins at 3"):
        next(journal.read(OffsetRange("orders", 0, 2, 5)))
    assert journal.remove_before(0, 2) == 3
    assert sorted(path.name for path in folder(journal).iterdir()) == [
        "00000000000000000003.block",
        "00000000000000000003.start",
        "00000000000000000010.block",
        "00000000000000000010.end",
        "00000000000000000012.end",
        "lock",
    ]


def test_whoever_asks_is_told_of_what_is_passed_over(journal: Journal) -> None:
    path = folder(journal) / "00000000000000000003.block"
    path.rename(path.with_suffix(".away"))
    repair(journal)
    lost: list[tuple[str, str]] = []

    def note(missing: OffsetRange, why: str) -> None:
        lost.append((str(missing), why))

    def read(start: int, until: int) -> list[int]:
        lost.clear()
        batches = journal.read(OffsetRange("orders", 0, start, until), on_loss=note)
        return [row["offset"] for batch in batches for row in batch.to_pylist()]

    assert read(0, 12) == [0, 1, 2, 10, 11]
    ((missing, why),) = lost
    assert missing == "orders-0 [3, 10)"
    assert why.startswith("declared lost by a repair: ")
    assert (read(5, 8), lost[0][0]) == ([], "orders-0 [5, 8)")
    journal.remove_before(0, 10)
    assert (read(1, 12), lost) == ([10, 11], [("orders-0 [1, 10)", "lane 0 now begins at 10")])


def test_what_a_crash_of_pruning_leaves_is_not_listed_and_goes_later(journal: Journal) -> None:
    left = folder(journal) / "00000000000000000000.block"
    data = left.read_bytes()
    journal.remove_before(0, 10)
    left.write_bytes(data)
    assert journal.bounds() == {0: (10, 12)}
    assert [block.first for block in journal.blocks(0)] == [10]
    assert journal.remove_before(0, 10) == 10
    assert not left.exists()
