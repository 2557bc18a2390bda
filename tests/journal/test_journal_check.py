"""Findings of `verify`, and their repair by `repair`."""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.journal.samples import (
    append,
    damage,
    folder,
    journal_at,
    numbered,
    numbers,
    segments_of,
    values_of,
)
from tests.journal.shim import Recorder, crashes
from tests.journal.stories import on_disk

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError
from headrace.journal import Journal, JournalFinding, JournalFindingKind, Lost, repair, verify
from headrace.journal.frame import HEADER_BYTES

FIRST, SECOND, THIRD = (f"{first:020d}.segment" for first in (0, 3, 10))


@pytest.fixture
def together(tmp_path: Path) -> Journal:
    """A journal with the blocks [0, 3), [3, 10) and [10, 12) in lane 0, in one segment."""
    made = journal_at(tmp_path / "together")
    append(made, 3, 7, 2)
    return made


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """The same, with a segment for each block."""
    made = journal_at(tmp_path / "orders")
    with segments_of(1):
        append(made, 3, 7, 2)
    return made


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def told(
    findings: tuple[JournalFinding, ...],
) -> list[tuple[JournalFindingKind, str, int | None, int | None]]:
    return [(each.kind, each.path, each.first, each.until) for each in findings]


def test_a_whole_journal_is_whole(journal: Journal) -> None:
    journal.writer(7).close()
    found = verify(journal)
    assert found.whole
    assert found.findings == ()
    assert [(lane.lane, lane.start, lane.until) for lane in found.lanes] == [(0, 0, 12), (7, 0, 0)]
    assert [(lane.blocks, lane.records) for lane in found.lanes] == [(3, 12), (0, 0)]
    assert repair(journal) == ()


def test_a_pruned_journal_is_whole(journal: Journal) -> None:
    journal.remove_before(0, 10)
    found = verify(journal)
    assert found.findings == ()
    assert (found.lanes[0].start, found.lanes[0].records) == (10, 2)


def test_a_journal_that_is_being_written_is_whole(journal: Journal) -> None:
    with journal.writer(0) as writer:
        writer.append(numbered(12, 13))
        assert verify(journal).findings == ()
        with pytest.raises(JournalError, match="is being written"):
            repair(journal)


@pytest.mark.parametrize("at", [0, 50, HEADER_BYTES, -1])
def test_a_damaged_block_is_found_and_declared_lost(journal: Journal, at: int) -> None:
    flip(folder(journal) / SECOND, at)
    found = verify(journal)
    assert not found.whole
    assert told(found.findings) == [(JournalFindingKind.DAMAGED, f"0/{SECOND}", 3, 10)]
    reason = found.findings[0].reason
    assert f"{folder(journal)}/{SECOND} (offset 3 of lane 0) is damaged" in reason
    assert (found.lanes[0].blocks, found.lanes[0].records) == (2, 5)

    assert repair(journal) == found.findings
    after = verify(journal)
    assert after.whole
    assert told(after.findings) == [(JournalFindingKind.LOST, "0/00000000000000000003.lost", 3, 10)]
    assert journal.lost(0) == [Lost(3, 10, reason)]
    assert values_of(journal) == numbers(range(3), range(10, 12))
    assert [block.first for block in journal.blocks(0)] == [0, 10]
    assert repair(journal) == ()


@pytest.mark.parametrize("at", [0, 50, HEADER_BYTES + 10])
@pytest.mark.parametrize("first", [0, 3])
def test_damage_within_a_segment_is_declared_lost_and_what_is_behind_it_is_read(
    together: Journal, at: int, first: int
) -> None:
    until, rest = {0: (3, [range(3, 12)]), 3: (10, [range(3), range(10, 12)])}[first]
    path = damage(together, first, at=at)
    before = path.read_bytes()
    found = verify(together)
    assert told(found.findings) == [(JournalFindingKind.DAMAGED, f"0/{FIRST}", first, until)]
    with pytest.raises(JournalError, match="the file was not changed"):
        together.writer(0)
    assert repair(together) == found.findings
    assert path.read_bytes() == before, "the damaged bytes stay where they are"
    assert verify(together).whole
    assert values_of(together) == numbers(*rest)
    assert sum(block.until - block.first for block in together.blocks(0)) == 12 - (until - first)
    append(together, 3)
    assert together.bounds() == {0: (0, 15)}
    assert verify(together).whole
    assert repair(together) == ()


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("frame", [0, 1])
def test_a_frame_that_is_there_again_keeps_nobody_from_what_is_behind_it_once_it_is_repaired(
    together: Journal, frame: int, times: int
) -> None:
    """Readers and writers do not come past it, and no record is lost."""
    until = [3, 10][frame]
    sizes = [block.stored_bytes for block in together.blocks(0)]
    path, (begin, end) = folder(together) / FIRST, (sum(sizes[:frame]), sum(sizes[: frame + 1]))
    data = path.read_bytes()
    path.write_bytes(data[:begin] + data[begin:end] * times + data[end:])
    found = verify(together)
    assert told(found.findings) == [(JournalFindingKind.DAMAGED, f"0/{FIRST}", until, until)]
    with pytest.raises(JournalError, match="the file was not changed"):
        together.writer(0)
    assert repair(together) == found.findings
    assert verify(together).findings == ()
    append(together, 3)
    assert values_of(together) == numbers(range(15))
    assert verify(together).findings == ()


@pytest.mark.parametrize("copied", [FIRST, SECOND])
def test_a_last_segment_with_another_s_bytes_is_damage(journal: Journal, copied: str) -> None:
    """Its own records are gone, and whole frames of another place do not say how many."""
    last = folder(journal) / THIRD
    last.write_bytes((folder(journal) / copied).read_bytes())
    with pytest.raises(JournalError, match=f"{THIRD} .* is damaged"):
        journal.writer(0)
    (finding,) = verify(journal).findings
    assert told((finding,)) == [(JournalFindingKind.DAMAGED, f"0/{THIRD}", 10, None)]
    assert "--reached 0:OFFSET" in finding.reason
    assert repair(journal) == repair(journal, {0: 10}) == ()
    assert told(repair(journal, {0: 12})) == [(JournalFindingKind.DAMAGED, f"0/{THIRD}", 10, 12)]
    append(journal, 3)
    assert verify(journal).whole
    assert values_of(journal) == numbers(range(10), range(12, 15))


def test_a_torn_tail_is_no_damage(together: Journal) -> None:
    path = folder(together) / FIRST
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert verify(together).findings == ()
    assert told(repair(together, {0: 12})) == [(JournalFindingKind.GAP, f"0/{THIRD}", 10, 12)]
    with together.writer(0) as writer:
        assert writer.append(numbered(12, 13)).start == 12
    assert verify(together).whole


def test_offsets_within_a_loss_are_passed_over(journal: Journal) -> None:
    (folder(journal) / SECOND).unlink()
    repair(journal)
    batches = journal.read(OffsetRange("orders", 0, 5, 11), ["value"])
    assert [batch.column("value").to_pylist() for batch in batches] == [[b"10"]]
    assert list(journal.read(OffsetRange("orders", 0, 4, 9))) == []


def test_a_gap_is_found_and_declared_lost(journal: Journal) -> None:
    (folder(journal) / SECOND).unlink()
    found = told(verify(journal).findings)
    assert found == [(JournalFindingKind.GAP, f"0/{SECOND}", 3, 10)]
    assert told(repair(journal)) == found
    assert verify(journal).whole
    assert values_of(journal) == numbers(range(3), range(10, 12))


def test_a_block_under_another_s_name_is_found(journal: Journal) -> None:
    (folder(journal) / SECOND).rename(folder(journal) / f"{5:020d}.segment")
    assert told(verify(journal).findings) == [
        (JournalFindingKind.GAP, f"0/{SECOND}", 3, 5),
        (JournalFindingKind.DAMAGED, f"0/{5:020d}.segment", 5, 10),
    ]
    repair(journal)
    assert verify(journal).whole
    assert [(lost.first, lost.until) for lost in journal.lost(0)] == [(3, 5), (5, 10)]
    assert values_of(journal) == numbers(range(3), range(10, 12))


def test_a_duplicate_is_found_and_set_aside(journal: Journal) -> None:
    shutil.copy(folder(journal) / SECOND, folder(journal) / f"{7:020d}.segment")
    found = verify(journal)
    assert told(found.findings) == [(JournalFindingKind.OVERLAP, f"0/{7:020d}.segment", 10, 10)]
    assert repair(journal) == found.findings
    assert verify(journal).findings == ()
    assert values_of(journal) == numbers(range(12))


def test_a_last_block_that_overlaps_keeps_its_offsets(journal: Journal) -> None:
    """A lane written twice from 11 on: the offsets that only the second has are not given again."""
    other = journal_at(folder(journal).parent.parent / "other")
    other.identity = journal.identity
    with segments_of(1):
        append(other, 11, 9)
    os.link(folder(other) / f"{11:020d}.segment", folder(journal) / f"{11:020d}.segment")
    assert told(verify(journal).findings) == [
        (JournalFindingKind.OVERLAP, f"0/{11:020d}.segment", 12, 20),
    ]
    repair(journal)
    assert verify(journal).whole
    assert values_of(journal) == numbers(range(12))
    assert journal.bounds() == {0: (0, 20)}


def test_what_no_journal_makes_is_told_and_left(journal: Journal) -> None:
    paths = ["0/notes.txt", "0/5.segment", "readme", "000/x"]
    for path in paths:
        foreign = folder(journal).parent / path
        foreign.parent.mkdir(exist_ok=True)
        foreign.touch()
    found = verify(journal)
    assert found.whole
    assert {(each.kind, each.path) for each in found.findings} == {
        (JournalFindingKind.FOREIGN, path)
        for path in ("0/notes.txt", "0/5.segment", "readme", "000")
    }
    assert repair(journal) == ()
    assert all((folder(journal).parent / path).exists() for path in paths)


@pytest.mark.parametrize("text", ["{}", "", '{"first": 0, "until": 5, "reason": "no"}'])
def test_a_damaged_word_of_a_loss_is_set_aside_and_written_anew(
    journal: Journal, text: str
) -> None:
    word = folder(journal) / "00000000000000000003.lost"
    (folder(journal) / SECOND).unlink()
    word.write_text(text)
    assert told(verify(journal).findings) == [(JournalFindingKind.DAMAGED, f"0/{word.name}", 3, 10)]
    assert told(repair(journal)) == [(JournalFindingKind.DAMAGED, f"0/{word.name}", 3, 10)]
    assert verify(journal).whole
    assert [(each.first, each.until) for each in journal.lost(0)] == [(3, 10)]
    (aside,) = folder(journal).glob("*.corrupt")
    assert aside.read_text() == text


def test_a_damaged_word_beside_a_block_is_set_aside_and_the_block_is_believed(
    journal: Journal,
) -> None:
    """A repair was cut short, or the word was never a repair's."""
    for name, data in ((SECOND, None), (THIRD, b"")):
        word = folder(journal) / name.replace("segment", "lost")
        word.write_text("{}")
        if data is not None:
            (folder(journal) / name).write_bytes(data)
    repair(journal)
    assert verify(journal).whole
    assert values_of(journal) == numbers(range(10))


def test_of_a_damaged_word_at_the_end_that_nothing_else_tells_of_it_is_said_what_to_give(
    journal: Journal,
) -> None:
    (folder(journal) / THIRD).unlink()
    word = folder(journal) / "00000000000000000010.lost"
    word.write_text("{")
    (finding,) = verify(journal).findings
    assert (finding.kind, finding.first, finding.until) == (JournalFindingKind.DAMAGED, 10, None)
    assert "--reached 0:OFFSET" in finding.reason
    assert repair(journal) == ()
    assert word.read_text() == "{"
    assert told(repair(journal, {0: 17})) == [
        (JournalFindingKind.DAMAGED, f"0/{word.name}", 10, 17)
    ]
    assert verify(journal).whole
    assert journal.bounds() == {0: (0, 17)}


@pytest.mark.parametrize("how", ["gone", "damaged", "damaged within"])
def test_a_repair_may_crash_at_any_moment(tmp_path: Path, how: str) -> None:
    base = tmp_path / "base"
    journal = journal_at(base / "orders")
    with nullcontext() if how == "damaged within" else segments_of(1):
        append(journal, 3, 7, 2)
    if how == "gone":
        (folder(journal) / SECOND).unlink()
    else:
        damage(journal, 3, at=20)
    kept = [range(3), range(10, 12)]
    (folder(journal) / "lock").unlink()
    recorder = Recorder(base)
    repair(journal_at(base / "orders", recorder))
    count = 0
    for files, _ in crashes(recorder):
        with on_disk(files, tmp_path / "crashed") as crashed:
            again = journal_at(crashed / "orders")
            repair(again)
            assert verify(again).whole
            assert values_of(again) == numbers(*kept)
            assert again.lane_bounds(0)[1] >= 12
        count += 1
    assert count > 5
