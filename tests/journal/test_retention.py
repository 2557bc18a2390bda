"""Pruning of a journal keeps all that a gate may still read, whatever happens meanwhile."""

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from tests.gate.ledger.readers import LANES, Readers, Step, steps
from tests.journal.samples import append, damage, journal_at, segments_of, values_of
from tests.journal.shim import Recorder, crashes
from tests.journal.stories import on_disk
from tests.services.examples import examples
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange, Processed
from headrace.gate.ledger.transitions import Status
from headrace.journal import Journal, KeptReason, LanePruning, prune, repair
from headrace.journal.storage.local import LocalStorage

NUMBERS = itertools.count()
LONG_AFTER_MS = 10**14


@pytest.fixture(autouse=True)
def _a_segment_for_each_block() -> Iterator[None]:
    with segments_of(1):
        yield


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """An empty ledger with the gate ``orders``."""
    with new_ledger(f"sqlite:///{tmp_path}/ledger.db") as opened:
        opened.gates.declare("orders", interval_ms=1, source="journal", estimator="pid")
        yield opened


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal with the blocks [0, 3), [3, 6), [6, 9) and [9, 12) in lane 0."""
    made = journal_at(tmp_path / "orders")
    append(made, 3, 3, 3, 3)
    return made


def batch(journal: Journal, start: int, until: int, gate: str = "orders") -> PlannedBatch:
    offsets = PlannedRange(OffsetRange("orders", 0, start, until), topic_id=journal.id)
    return PlannedBatch(gate, "run", (offsets,), "rate", "")


def read(ledger: Ledger, journal: Journal, *bounds: int, gate: str = "orders") -> list[str]:
    """Batches that succeed, one from each bound to the next; their keys."""
    keys = []
    for start, until in itertools.pairwise(bounds):
        keys.append(ledger.batches.begin(batch(journal, start, until, gate)).batch_key)
        ledger.batches.succeed(keys[-1])
    return keys


def all_pruned(journal: Journal, ledger: Ledger, **options: Any) -> tuple[LanePruning, ...]:
    """Prune the journal's blocks, however young they are; return the pruning of each lane."""
    return prune(journal, ledger, 0, now_ms=LONG_AFTER_MS, **options)


def pruned(journal: Journal, ledger: Ledger, **options: Any) -> LanePruning:
    """Prune the journal, and return the pruning of its only lane."""
    (lane,) = all_pruned(journal, ledger, **options)
    return lane


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=steps(*["append"] * 3, *["prune_journal"] * 2, least=30))
def test_what_a_gate_may_still_read_is_never_removed_and_the_rest_is(
    ledger: Ledger, tmp_path: Path, story: list[Step]
) -> None:
    number = next(NUMBERS)
    journal = journal_at(tmp_path / f"{number}/orders")
    for lane in range(LANES):
        append(journal, 1, lane=lane)
    gates = (f"a{number}", f"b{number}")
    readers = Readers(ledger, journal.id, gates, journal.lane_bounds)
    for step in story:
        if step[0] == "append":
            append(journal, 1 + step[2] % 4, lane=step[1])
        elif step[0] == "prune_journal":
            prune_and_check(journal, ledger, readers)
        else:
            readers.step(step)
    prune_and_check(journal, ledger, readers)


def prune_and_check(journal: Journal, ledger: Ledger, readers: Readers) -> None:
    began = {lane: journal.lane_bounds(lane) for lane in range(LANES)}
    told = all_pruned(journal, ledger, unread=True)
    for lane, (start, end) in began.items():
        now = journal.lane_bounds(lane)[0]
        assert (told[lane].start, told[lane].until) == (start, now)
        assert journal.lane_bounds(lane)[1] == end
        assert not any(readers.needs(lane, offset) for offset in range(start, now))
        assert values_of(journal, lane) == [b"%d" % offset for offset in range(now, end)]
        first, *others = journal.blocks(lane)
        assert not others or any(
            readers.needs(lane, offset) for offset in range(first.first, first.until)
        )


def test_blocks_that_every_gate_is_through_with_are_removed(
    journal: Journal, ledger: Ledger
) -> None:
    *_, last = read(ledger, journal, 0, 4, 7, 12)
    sizes = [block.stored_bytes for block in journal.blocks(0)]
    expected = LanePruning(
        lane=0,
        start=0,
        until=6,
        blocks=2,
        records=6,
        stored_bytes=sum(sizes[:2]),
        kept_blocks=2,
        kept_bytes=sum(sizes[2:]),
        kept=KeptReason.NEEDED,
        needed_by=Processed("orders", 0, 7, last, Status.SUCCESS),
    )
    assert pruned(journal, ledger, dry_run=True) == expected
    assert journal.lane_bounds(0) == (0, 12)
    assert pruned(journal, ledger) == expected
    assert journal.lane_bounds(0) == (6, 12)
    assert pruned(journal, ledger).blocks == 0


def test_a_failed_batch_keeps_its_blocks_until_it_is_backfilled(
    journal: Journal, ledger: Ledger
) -> None:
    failed = ledger.batches.begin(batch(journal, 4, 5)).batch_key
    ledger.batches.fail(failed, ValueError("no"))
    read(ledger, journal, 5, 11, 12)
    lane = pruned(journal, ledger)
    assert (lane.until, lane.needed_by) == (3, Processed("orders", 0, 4, failed, Status.FAILED))
    ledger.batches.claim(failed, "me", 1_000)
    assert pruned(journal, ledger).until == 3
    ledger.batches.backfilled(failed, "me")
    assert pruned(journal, ledger).until == 9


def test_the_gate_that_is_furthest_behind_decides(journal: Journal, ledger: Ledger) -> None:
    ledger.gates.declare("audit", interval_ms=1, source="journal", estimator="pid")
    read(ledger, journal, 0, 11, 12)
    behind = read(ledger, journal, 0, 4, 5, gate="audit")[-1]
    lane = pruned(journal, ledger)
    assert (lane.until, lane.needed_by) == (3, Processed("audit", 0, 4, behind, Status.SUCCESS))
    lane = pruned(journal, ledger, without=["audit"])
    assert lane.until == 9


def test_blocks_are_kept_as_long_as_they_are_young(
    journal: Journal, ledger: Ledger, tmp_path: Path
) -> None:
    read(ledger, journal, 0, 11, 12)
    for number, path in enumerate(sorted((tmp_path / "orders/0").glob("*.segment"))):
        os.utime(path, (number, number))
    ends = {}
    for now_ms in (4_999, 5_000, 6_500, 8_000):
        (lane,) = prune(journal, ledger, 5_000, now_ms=now_ms, dry_run=True)
        ends[now_ms] = (lane.until, lane.kept)
    assert ends == {
        4_999: (0, KeptReason.YOUNG),
        5_000: (3, KeptReason.YOUNG),
        6_500: (6, KeptReason.YOUNG),
        8_000: (9, KeptReason.NEEDED),
    }


def test_a_journal_that_no_gate_has_read_is_not_pruned_unless_that_is_meant(
    journal: Journal, ledger: Ledger
) -> None:
    with pytest.raises(
        JournalError, match="According to this ledger, no gate has read the journal"
    ):
        pruned(journal, ledger)
    assert journal.lane_bounds(0) == (0, 12)
    lane = pruned(journal, ledger, unread=True)
    assert (lane.until, lane.kept_blocks, lane.kept) == (9, 1, KeptReason.LAST)
    assert values_of(journal) == [b"9", b"10", b"11"]


def test_a_gate_that_will_not_read_again_is_left_out(journal: Journal, ledger: Ledger) -> None:
    read(ledger, journal, 0, 1)
    assert pruned(journal, ledger).until == 0
    with pytest.raises(JournalError, match="According to this ledger, no gate"):
        all_pruned(journal, ledger, without=["orders"])
    lane = pruned(journal, ledger, without=["orders"], unread=True, dry_run=True)
    assert lane.until == 9


def test_a_lane_that_no_gate_has_read_yet_is_kept_whole(journal: Journal, ledger: Ledger) -> None:
    append(journal, 2, 2, lane=1)
    read(ledger, journal, 0, 11, 12)
    first, second = all_pruned(journal, ledger)
    assert first.until == 9
    assert (second.until, second.needed_by) == (0, Processed("orders", 1, 0))


def test_a_lane_that_a_gate_will_never_read_is_pruned_apart(
    journal: Journal, ledger: Ledger
) -> None:
    append(journal, 2, 2, lane=1)
    read(ledger, journal, 0, 4, 5)
    lane = pruned(journal, ledger, only=[1], without=["orders"], unread=True)
    assert (lane.lane, lane.until, lane.kept) == (1, 2, KeptReason.LAST)
    assert journal.bounds() == {0: (0, 12), 1: (2, 4)}
    lane = pruned(journal, ledger, only=[0])
    assert (lane.lane, lane.until) == (0, 3)
    with pytest.raises(JournalError, match="has no lane 2; its lanes: 0, 1"):
        all_pruned(journal, ledger, only=[0, 2])


def test_what_was_declared_lost_goes_with_what_lies_around_it(
    journal: Journal, ledger: Ledger, tmp_path: Path
) -> None:
    damage(journal, 3)
    repair(journal)
    read(ledger, journal, 0, 11, 12)
    lane = pruned(journal, ledger)
    assert (lane.until, lane.blocks, lane.records) == (9, 2, 6)
    assert journal.lost(0) == []


def test_a_lane_without_a_block_has_nothing_to_prune(journal: Journal, ledger: Ledger) -> None:
    read(ledger, journal, 0, 12)
    journal.writer(1).close()
    assert all_pruned(journal, ledger)[1].kept is None


def files_of(path: Path) -> list[str]:
    """The names in a lane's folder, but its lock's."""
    return sorted(each.name for each in path.glob("*.*"))


class Dying(LocalStorage):
    """Storage of a process that dies when a file is gone, and before that is durable."""

    def remove(self, folder: str, names: Sequence[str]) -> None:
        for name in names[:1]:
            with suppress(FileNotFoundError):
                self._disk.unlink(self._root / folder / name)
        raise OSError("killed")


def pruned_twice(
    base: Path, ledger: Ledger, after: int, storage: type[LocalStorage]
) -> Recorder | None:
    """Record a pruning in whose middle another one is done; None if that was too late."""
    journal = journal_at(base / "orders")
    append(journal, 3, 3, 3)
    read(ledger, journal, 0, 8, 9)
    met = False

    def meet(count: int) -> None:
        nonlocal met
        if not met and count == after:
            met = True
            other = Journal(storage(base / "orders", recorder), journal.identity)
            with suppress(JournalError) if storage is Dying else nullcontext():
                pruned(other, ledger)

    recorder = Recorder(base, between=meet)
    pruned(Journal(LocalStorage(base / "orders", recorder), journal.identity), ledger)
    return recorder if met else None


@pytest.mark.integration
@pytest.mark.parametrize("storage", [LocalStorage, Dying])
def test_two_prunings_at_once_both_end_well_and_no_crash_takes_more(
    ledger: Ledger, tmp_path: Path, storage: type[LocalStorage]
) -> None:
    for after in itertools.count(1):
        base = tmp_path / f"base {after}"
        if (recorder := pruned_twice(base, ledger, after, storage)) is None:
            break
        assert files_of(base / "orders/0") == [f"{6:020d}.segment"]
        for files, _ in crashes(recorder):
            with on_disk(files, tmp_path / "crashed") as left:
                found = journal_at(left / "orders")
                start = found.lane_bounds(0)[0]
                assert values_of(found) == [b"%d" % offset for offset in range(start, 9)]
    assert after > 3, "there was that much to be in the middle of"


def test_a_pruning_in_which_a_call_fails_is_told_and_ended_by_the_next(
    ledger: Ledger, tmp_path: Path
) -> None:
    failures = 0
    for fault in itertools.count():
        base = tmp_path / f"base {fault}"
        journal = journal_at(base / "orders")
        append(journal, 3, 3, 3)
        read(ledger, journal, 0, 8, 9)
        failing = Recorder(base, fault=fault)
        try:
            pruned(Journal(LocalStorage(base / "orders", failing), journal.identity), ledger)
        except JournalError:
            failures += 1
            assert journal.lane_bounds(0)[0] in (0, 3, 6)
        if failing.calls <= fault:
            break
        pruned(journal, ledger)
        assert journal.lane_bounds(0) == (6, 9)
        assert values_of(journal) == [b"6", b"7", b"8"]
    assert failures > 3
