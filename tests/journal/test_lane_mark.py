"""A lane whose last blocks disappear gives none of their offsets to other records.

The tests keep the records that were acknowledged, and read blocks with pyarrow alone, from the
files: after a header of 128 bytes each is one Arrow stream.
"""

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journal.receivers.processes import ReceiverProcess, receiver
from tests.journal.samples import append, folder, numbered, stored
from tests.journal.shim import Recorder, Sync, SyncFolder
from tests.journal.stories import opened

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError, JournalError
from headrace.journal import Journal, JournalFindingKind, Lost, repair, verify


def files(lane: Path, kind: str) -> list[Path]:
    return sorted(lane.glob(f"*.{kind}"))


def remove(journal: Journal, *kinds: str, since: int = 0) -> None:
    """Remove the lane's files of these kinds whose names begin with an offset from this on."""
    for kind in kinds:
        for path in files(folder(journal), kind):
            if int(path.stem) >= since:
                path.unlink()


def refused(journal: Journal, end: int, mark: int) -> None:
    """The lane is refused to its writer and to readers, and verify says what is missing."""
    words = rf"ends at offset {end}, although it had reached {mark}: .*journal repair"
    looks: list[Callable[[], object]] = [
        lambda: journal.writer(0),
        lambda: journal.lane_bounds(0),
    ]
    for look in looks:
        with pytest.raises(CorruptionError, match=words):
            look()
    assert not verify(journal).whole


def goes_on_at(journal: Journal, offset: int) -> None:
    assert verify(journal).whole
    with journal.writer(0) as writer:
        assert writer.append(numbered(offset, offset + 2)).start == offset
    assert verify(journal).whole
    assert {offset, offset + 1} <= stored(folder(journal)).keys()


def test_a_last_block_that_lost_its_name_is_still_there(journal: Journal) -> None:
    remove(journal, "block", since=10)
    found = verify(journal)
    assert not found.whole
    assert [(each.kind, each.first, each.until) for each in found.findings] == [
        (JournalFindingKind.SPARE, 10, 12)
    ]
    assert journal.bounds() == {0: (0, 10)}
    journal.writer(0).close()
    goes_on_at(journal, 12)
    assert stored(folder(journal)) == {offset: b"%d" % offset for offset in range(14)}


def test_repair_gives_it_its_name_again(journal: Journal) -> None:
    remove(journal, "block", since=10)
    assert [each.kind for each in repair(journal)] == [JournalFindingKind.SPARE]
    assert journal.bounds() == {0: (0, 12)}
    assert stored(folder(journal)) == {offset: b"%d" % offset for offset in range(12)}
    assert repair(journal) == ()


@pytest.mark.integration
@pytest.mark.parametrize("since", [3, 0])
def test_last_blocks_that_are_gone_are_declared_lost_but_the_mark_s(
    journal: Journal, since: int
) -> None:
    """The blocks are all but the first one, or all, which leaves only the lane's mark."""
    remove(journal, "block", since=since)
    refused(journal, since, 12)
    mended = repair(journal)
    assert [(each.kind, each.first, each.until) for each in mended] == [
        (JournalFindingKind.GAP, since, 10),
        (JournalFindingKind.SPARE, 10, 12),
    ]
    assert [(each.first, each.until) for each in journal.lost(0)] == [(since, 10)]
    goes_on_at(journal, 12)


def test_if_the_mark_is_but_a_name_all_that_is_gone_is_declared_lost(journal: Journal) -> None:
    """As after a backup that does not keep what links have in common, or a damaged one."""
    remove(journal, "block", since=10)
    (_, mark) = files(folder(journal), "end")
    mark.unlink()
    mark.write_bytes(b"")
    refused(journal, 10, 12)
    assert [(each.first, each.until) for each in repair(journal)] == [(10, 12)]
    assert [(each.first, each.until) for each in journal.lost(0)] == [(10, 12)]
    goes_on_at(journal, 12)


@pytest.mark.parametrize("whole_folder", [True, False])
def test_a_lane_of_which_nothing_is_left_does_not_begin_again(
    journal: Journal, *, whole_folder: bool
) -> None:
    remove(journal, "block", "end")
    if whole_folder:
        (folder(journal) / "lock").unlink()
        folder(journal).rmdir()
    with pytest.raises(CorruptionError, match=r"Nothing is left of lane 0 .* --reached 0:OFFSET"):
        journal.writer(0)
    (finding,) = verify(journal).findings
    assert (finding.kind, finding.first, finding.until) == (JournalFindingKind.GAP, 0, None)
    assert repair(journal) == ()
    assert not verify(journal).whole
    assert [(each.first, each.until) for each in repair(journal, {0: 12})] == [(0, 12)]
    assert journal.lost(0) == [Lost(0, 12, journal.lost(0)[0].reason)]
    goes_on_at(journal, 12)


@pytest.mark.parametrize("mark", [None, 3])
def test_a_mark_that_is_gone_or_of_an_earlier_time_is_made_anew(
    journal: Journal, mark: int | None
) -> None:
    """As of a journal that an earlier Headrace has written."""
    remove(journal, "end")
    if mark is not None:
        (folder(journal) / f"{mark:020d}.end").write_bytes(b"")
    assert verify(journal).whole
    journal.writer(0).close()
    assert files(folder(journal), "end")[-1].stem == f"{12:020d}"
    goes_on_at(journal, 12)


def test_what_a_reader_has_read_counts_beside_the_mark(journal: Journal) -> None:
    """A whole lane was put back as it was earlier: its own mark knows of nothing else."""
    remove(journal, "block", "end", since=10)
    journal.writer(0).close()
    assert verify(journal).whole
    assert not verify(journal, {0: 12}).whole
    assert [(each.first, each.until) for each in repair(journal, {0: 12})] == [(10, 12)]
    goes_on_at(journal, 12)


def test_what_a_mark_says_does_not_depend_on_what_was_pruned(journal: Journal) -> None:
    assert journal.remove_before(0, 12) == 12
    assert (journal.bounds(), journal.blocks(0)) == ({0: (12, 12)}, [])
    assert files(folder(journal), "end") == []  # nor is there a block's content any more
    goes_on_at(journal, 12)
    assert journal.remove_before(0, 14) == 14
    append(journal, 1, 2)
    remove(journal, "block", since=15)
    remove(journal, "end", since=17)
    (folder(journal) / f"{17:020d}.end").touch()
    refused(journal, 15, 17)
    repair(journal)
    goes_on_at(journal, 17)


def test_an_append_costs_the_syncs_that_it_did_without_a_mark(tmp_path: Path) -> None:
    """One of the block's data and one of its folder, from the second block of a lane on."""
    recorder = Recorder(tmp_path)
    journal = opened(tmp_path, recorder)
    with journal.writer(0) as writer:
        writer.append(numbered(0, 1))
        writer.append(numbered(1, 2))
        del recorder.log[:]
        for start in range(2, 12):
            writer.append(numbered(start, start + 1))
        assert [type(each) for each in recorder.log].count(Sync) == 10
        assert [each.path.name for each in recorder.log if isinstance(each, SyncFolder)] == [
            "0"
        ] * 10
    assert [path.stem for path in files(tmp_path / "a/orders/0", "end")] == [
        f"{mark:020d}" for mark in (11, 12)
    ]


# From outside: a receiver in a process of its own, a plain socket, and what it acknowledged.


def send(running: ReceiverProcess, lines: list[bytes]) -> None:
    """Send lines over TCP; returns when all of them are acknowledged."""
    with socket.create_connection(running.address, timeout=60) as sender:
        sender.sendall(b"".join(line + b"\n" for line in lines))
        with sender.makefile("rb") as answers:
            left = len(lines)
            while left:
                word, count = answers.readline().split()
                assert word == b"ok"
                left -= int(count)


@pytest.mark.integration
def test_a_receiver_does_not_give_acknowledged_offsets_to_others(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    lane = tmp_path / "events/0"
    with receiver(tmp_path, "tcp", "--acknowledge") as running:
        for number in range(6):
            lines = [b"%d.%d" % (number, each) for each in range(5)]
            send(running, lines)
            acknowledged += lines
        running.send(signal.SIGKILL)
        running.ended()
    assert stored(lane) == dict(enumerate(acknowledged))
    blocks = files(lane, "block")
    gone = int(blocks[-3].stem)
    for path in blocks[-3:]:
        path.unlink()
    with receiver(tmp_path, "tcp", "--acknowledge") as running:
        assert running.ended() == 1
        assert running.errors.count("\n") == 1
        assert f"ends at offset {gone}, although it had reached 30" in running.errors
    repair(Journal.open(str(tmp_path / "events")))
    with receiver(tmp_path, "tcp", "--acknowledge") as running:
        assert running.wait_for("receiving")["offset"] == 30
        send(running, [b"new"])
    after = stored(lane)
    assert after[30] == b"new"
    assert all(after[offset] == acknowledged[offset] for offset in after if offset < 30)
    (lost,) = Journal.open(str(tmp_path / "events")).lost(0)
    assert {*range(lost.first, lost.until)} == set(range(30)) - after.keys()


def test_a_journal_is_refused_where_it_is_read_beyond_its_end(journal: Journal) -> None:
    remove(journal, "block", since=3)
    with pytest.raises(JournalError, match="although it had reached 12"):
        list(journal.read(OffsetRange("orders", 0, 2, 12)))
