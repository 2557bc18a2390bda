"""Records with message ids: what is sent again is stored once, also after a restart."""

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.journal.receivers.serving import DEADLINE_S, in_loop, until
from tests.journal.receivers.virtual import (
    ANSWER_LOST,
    LATE,
    NO_SPACE,
    Lane,
    enter,
    in_virtual_time,
    records,
    run,
)
from tests.journal.samples import journal_at, segments_of
from tests.journal.shim import FailingDisk, Fast
from tests.services.examples import examples

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError, ReceiverError
from headrace.journal import Journal
from headrace.journal.receivers import Hosting, Intake, IntakeSettings, Receipt
from headrace.journal.receivers.deduplicator import StoredIds, newest_ids
from headrace.journal.receivers.hosting import serve
from headrace.journal.records import Records


def offsets(start: int, until: int) -> OffsetRange:
    return OffsetRange("events", 0, start, until)


@in_virtual_time
async def test_a_record_that_is_sent_again_is_stored_once() -> None:
    lane = Lane()
    async with Intake(lane.append) as intake:
        first = await enter(intake, records(b"a", b"b", ids=["1", "2"]))
        # While the first is on its way, and after that.
        assert await intake.submit(records(b"b", ids=["2"])) == Receipt(offsets(1, 2), 1)
        assert first.result() == Receipt(offsets(0, 2))
        again = await intake.submit(records(b"a", b"b", ids=["1", "2"]))
        assert again == Receipt(offsets(0, 2), 2)
        # In part, without an id, and twice in one.
        mixed = records(b"b", b"c", b"-", b"c", ids=["2", "3", None, "3"])
        assert await intake.submit(mixed) == Receipt(offsets(2, 4), 2)
        assert lane.values == [b"a", b"b", b"c", b"-"]
        assert intake.statistics.duplicate_records == 5


@in_virtual_time
async def test_a_duplicate_of_what_was_not_stored_is_not_acknowledged() -> None:
    lane = Lane()
    lane.failures = [NO_SPACE]
    async with Intake(lane.append) as intake:
        first = await enter(intake, records(b"a", ids=["1"]))
        second = await enter(intake, records(b"a", ids=["1"]))
        with pytest.raises(JournalError, match="disk is full"):
            await first
        with pytest.raises(JournalError, match=r"'1' was sent again while .* send it again"):
            await second
        assert await intake.submit(records(b"a", ids=["1"])) == Receipt(offsets(0, 1))
        assert lane.values == [b"a"]


@in_virtual_time
async def test_what_comes_again_is_refused_while_it_is_not_known_whether_it_is_stored() -> None:
    lane = Lane()
    lane.failures = [ANSWER_LOST]
    away = JournalError("The storage is away; wait.")
    lane.settle_failures = [away, away]
    async with Intake(lane.append, settle=lane.settle) as intake:
        with pytest.raises(JournalError, match="timed out"):
            await intake.submit(records(b"a", ids=["1"]))
        with pytest.raises(JournalError, match="storage is away"):
            await intake.submit(records(b"a", ids=["1"]))
        other = await enter(intake, records(b"without an id"))
        with pytest.raises(JournalError, match=r"'1' was sent again before .* send it again"):
            await intake.submit(records(b"a", ids=["1"]))
        assert await other == Receipt(offsets(1, 2))
        assert await intake.submit(records(b"a", ids=["1"])) == Receipt(offsets(0, 1), 1)
        assert lane.values == [b"a", b"without an id"]


@in_virtual_time
async def test_a_record_that_comes_late_into_the_lane_is_not_stored_again() -> None:
    lane = Lane()
    lane.failures = [LATE]
    async with Intake(lane.append, IntakeSettings(block_bytes=100), settle=lane.settle) as intake:
        with pytest.raises(JournalError, match="timed out"):
            await intake.submit(records(b"a", ids=["1"]))
        other = await enter(intake, records(b"%0100d" % 0))
        again = await enter(intake, records(b"b", b"a", ids=["2", "1"]))
        with pytest.raises(JournalError, match="An earlier block is there"):
            await other
        with pytest.raises(JournalError, match=r"'1' was sent again before .* send it again"):
            await again
        once_more = await intake.submit(records(b"b", b"a", ids=["2", "1"]))
        assert once_more == Receipt(offsets(1, 2), 1)
        assert lane.values == [b"a", b"b"]


@in_virtual_time
async def test_a_block_whose_sync_failed_is_in_the_journal_once(tmp_path: Path) -> None:
    disk = FailingDisk()
    journal = journal_at(tmp_path / "events", disk)
    with journal.writer(0) as writer:
        async with Intake(writer.append, settle=writer.settle) as intake:
            await intake.submit(records(b"a", ids=["id0"]))
            disk.fail = "sync"
            with pytest.raises(JournalError, match="could not be made durable"):
                await intake.submit(records(b"b", ids=["id1"]))
            again = await intake.submit(records(b"b", ids=["id1"]))
            assert again == Receipt(offsets(1, 2))
            assert (await intake.submit(records(b"c", ids=["id2"]))).offsets == offsets(2, 3)
    columns = [journal.records(0, block.first).batch.column("id") for block in journal.blocks(0)]
    assert [column.to_pylist() for column in columns] == [["id0"], ["id1"], ["id2"]]


@in_virtual_time
async def test_ids_are_restored_up_to_the_size_of_the_window() -> None:
    lane = Lane(start=9)
    async with Intake(
        lane.append, IntakeSettings(block_bytes=1_000, max_memory_bytes=6_000)
    ) as intake:
        intake.restore(["1", None, "2", "3"], offsets(5, 9))
        assert await intake.submit(records(b"c", ids=["3"])) == Receipt(offsets(8, 9), 1)
        assert await intake.submit(records(b"a", ids=["1"])) == Receipt(offsets(9, 10))
        assert await intake.submit(records(b"b", ids=["2"])) == Receipt(offsets(10, 11))


@in_virtual_time
async def test_no_record_is_taken_for_one_of_another_message_before_a_restart_and_after() -> None:
    """Ids are compared as they are: case, accents, and what looks like a record's number."""
    counts = {"x": 2, "x:0": 2, "x:1": 1, "x:0:2": 1, "x:1:1": 1, "X": 1, "\u00e9": 1}
    counts |= {"e\u0301": 1, "y" * 200: 2, "y" * 199: 1, "y" * 198 + ":1": 1}
    lane = Lane()
    for is_restarted in (False, True):
        async with Intake(lane.append) as intake:
            restore_all(intake, lane)
            for message_id, count in counts.items():
                receipt = await intake.submit(records(*[b""] * count), message_id)
                assert receipt.duplicates == (count if is_restarted else 0)
    assert sum(lane.sizes) == sum(counts.values())


@in_virtual_time
async def test_of_a_message_that_was_stored_in_part_the_others_are_stored_when_it_comes_again() -> (
    None
):
    lane = Lane()
    sent = records(b"0", b"1", b"2", b"3", b"4")
    async with Intake(lane.append, IntakeSettings(block_bytes=1)) as intake:
        lane.failures = [None, NO_SPACE, None, NO_SPACE, None]
        with pytest.raises(JournalError, match="disk is full"):
            await intake.submit(sent, "m")
        assert lane.values == [b"0", b"2", b"4"]
        assert await intake.submit(sent, "m") == Receipt(offsets(3, 5), 3)
        assert await intake.submit(sent, "m") == Receipt(offsets(0, 5), 5)
    async with Intake(lane.append) as intake:
        restore_all(intake, lane)
        longer = records(b"0", b"1", b"2", b"3", b"4", b"5")
        assert await intake.submit(longer, "m") == Receipt(offsets(5, 6), 5)
        assert lane.values == [b"0", b"2", b"4", b"1", b"3", b"5"]


def restore_all(intake: Intake, lane: Lane) -> None:
    """Restore the ids of all blocks, as a restart does."""
    ids = [each for block in lane.records for each in block.batch["id"].to_pylist()]
    intake.restore(ids, offsets(0, len(ids)))


@in_virtual_time
async def test_a_window_has_one_entry_for_a_message_and_gives_its_memory_back() -> None:
    lane = Lane()
    settings = IntakeSettings(block_bytes=10_000, max_memory_bytes=64_000)
    async with Intake(lane.append, settings) as intake:
        await intake.submit(records(*[b"1"] * 300), "m" * 200)
        assert 200 < intake.statistics.ids_bytes < 1_000
        assert lane.records[0].ids[1] < 1_000
        for number in range(100):
            await intake.submit(records(b"1", b"2"), f"{number}")
            assert intake.statistics.ids_bytes <= 12_000
        assert (await intake.submit(records(b"1", b"2"), "99")).duplicates == 2
        assert not (await intake.submit(records(b"1", b"2"), "0")).duplicates
        lane.failures = [NO_SPACE]
        before = intake.statistics.ids_bytes
        with pytest.raises(JournalError):
            await intake.submit(records(b"1"), "99")
            await intake.submit(records(b"1"), "n")
        assert intake.statistics.ids_bytes <= before


sends = st.lists(
    st.tuples(
        st.floats(0, 0.5),  # pause before it (s)
        st.integers(1, 30),  # records
        st.sampled_from([False, True, "message"]),  # ids, from a few: none, each its own, or one
        st.booleans(),  # cancelled by its sender soon after
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def unlogged() -> Iterator[None]:
    """The errors of the blocks that are to fail are not told."""
    log = logging.getLogger("headrace.receivers")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


@pytest.mark.usefixtures("unlogged")
@examples(100)
@example(  # one that repeats what failed, and then came with one that waits for its memory
    [(0.0, 1, False, False), (0.0, 6, True, False), (0.0, 22, True, False), (0.5, 30, True, False)],
    [None, NO_SPACE],
    [],
    5.0,
    8_000,
)
@given(
    sends,
    st.lists(st.sampled_from([None, NO_SPACE, ANSWER_LOST, LATE]), max_size=10),
    st.lists(st.sampled_from([None, NO_SPACE]), max_size=5),
    st.one_of(st.none(), st.floats(5, 500)),
    st.integers(8_000, 80_000),
)
def test_what_is_acknowledged_is_stored_where_it_says_and_with_an_id_once(
    sends: list[tuple[float, int, bool | str, bool]],
    failing: list[Exception | None],
    settling: list[Exception | None],
    rate: float | None,
    block_bytes: int,
) -> None:
    acknowledged: list[tuple[list[bytes], list[str | None], Receipt]] = []

    async def send(intake: Intake, number: int, count: int, with_ids: bool | str) -> None:
        message_id = f"m{number % 3}" if with_ids == "message" else None
        ids: list[str | None] = [f"{(number + i) % 40}" if with_ids else None for i in range(count)]
        if message_id is not None:
            ids = [f"{message_id}.{i}" for i in range(count)]
        values = [
            (f"{number}.{i}" if id_ is None else f"id {id_}").encode() + bytes(1_000)
            for i, id_ in enumerate(ids)
        ]
        try:
            if message_id is None:
                receipt = await intake.submit(records(*values, ids=ids))
            else:
                receipt = await intake.submit(records(*values), message_id)
        except JournalError:
            return
        acknowledged.append((values, ids, receipt))

    async def work() -> Lane:
        lane = Lane()
        lane.failures = list(failing)
        lane.settle_failures = list(settling)
        bounds = IntakeSettings(
            block_bytes=block_bytes, max_memory_bytes=4 * (block_bytes + 50_000)
        )
        async with Intake(lane.append, bounds, settle=lane.settle) as intake:
            intake.set_rate(rate)
            tasks = []
            for number, (pause_s, count, with_ids, cancelled) in enumerate(sends):
                await asyncio.sleep(pause_s)
                tasks.append(task := asyncio.create_task(send(intake, number, count, with_ids)))
                if cancelled:
                    await asyncio.sleep(pause_s / 2)
                    task.cancel()
            for task in tasks:
                await asyncio.wait([task])
                assert task.cancelled() or task.exception() is None
            await asyncio.sleep(10)
            assert intake.statistics.reserved_bytes == intake.statistics.waiting_records == 0
        return lane

    stored = run(work()).values
    named = [value for value in stored if value.startswith(b"id ")]
    assert len(named) == len(set(named))
    for values, _, receipt in acknowledged:
        assert set(values) <= set(stored)
        if not receipt.duplicates:
            assert stored[receipt.offsets.start : receipt.offsets.until] == values


BLOCKS = 5


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Has a lane of blocks of one record, whose ids are their offsets."""
    made = Journal.open(str(tmp_path / "events"), create=True)
    with segments_of(1), made.writer(0) as writer:
        for offset in range(BLOCKS):
            writer.append(Records.of([b"x"], timestamp_ms=1, ids=[str(offset)]))
    return made


class Slow:
    """Blocks that come when they are let, as over a network."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.going = threading.Event()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    slow, read_back = Slow(), Journal.read_back

    def come(journal: Journal, lane: int) -> Iterator[tuple[int, Records]]:
        for first, part in read_back(journal, lane):
            slow.read.append(first)
            assert slow.going.wait(DEADLINE_S)
            yield first, part

    monkeypatch.setattr(Journal, "read_back", come)
    return slow


async def settle() -> None:
    """Let whoever can go on do so until nobody can."""
    for _ in range(20):
        await asyncio.sleep(0)


def offsets_of(found: list[StoredIds]) -> list[int]:
    return [offsets.start for ids, offsets in found if ids == [str(offsets.start)]]


@pytest.mark.parametrize(("step_s", "max_ids", "first"), [(4, 100, 3), (0, 100, 0), (0, 2, 3)])
def test_ids_are_read_until_there_are_enough_or_the_time_is_over_which_is_logged(
    journal: Journal,
    caplog: pytest.LogCaptureFixture,
    step_s: int,
    max_ids: int,
    first: int,
) -> None:
    clock = count(step=step_s)
    now_s = lambda: float(next(clock))  # noqa: E731
    with caplog.at_level(logging.WARNING, "headrace.receivers"):
        read = asyncio.run(newest_ids(journal, 0, max_ids, asyncio.Event(), now_s))
    assert offsets_of(read) == list(range(first, BLOCKS))
    cut_off = "newest 2 message ids (in 2 blocks) were restored in 10 s"
    assert [cut_off in each for each in caplog.messages] == ([True] if step_s else [])


@pytest.mark.parametrize("count", [1, 10])
def test_records_without_ids_do_not_cost_the_ids_before_them(journal: Journal, count: int) -> None:
    with segments_of(1), journal.writer(0) as writer:
        for _ in range(30):
            writer.append(Records.of([b"x"] * count, timestamp_ms=1))
    read = asyncio.run(newest_ids(journal, 0, BLOCKS, asyncio.Event()))
    assert offsets_of(read) == list(range(BLOCKS))


class Interrupted(Fast):
    """Fails, or finds the file removed, when the file of a name is looked at."""

    def __init__(self, name: str, error: int) -> None:
        self._name = name
        self._error = error

    def sync_path(self, path: Path) -> int:
        if path.name == self._name:
            if self._error == errno.ENOENT:
                path.unlink(missing_ok=True)
            else:
                raise OSError(self._error, os.strerror(self._error))
        return super().sync_path(path)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_storage_that_fails_while_ids_are_read_does_not_cost_them(
    tmp_path: Path, failing: int
) -> None:
    """A receiver that began without them would store again what is sent again."""
    with segments_of(1), journal_at(tmp_path / "events").writer(0) as writer:
        for number in range(3):
            writer.append(records(b"a", ids=[str(number)]))
    disk = Interrupted(f"{failing:020d}.segment", errno.EIO)
    journal = journal_at(tmp_path / "events", disk)
    with pytest.raises(JournalError, match="Input/output error"):
        asyncio.run(newest_ids(journal, 0, 100, asyncio.Event()))


def test_of_blocks_that_are_pruned_while_ids_are_read_there_are_none(tmp_path: Path) -> None:
    with segments_of(1), journal_at(tmp_path / "events").writer(0) as writer:
        for number in range(3):
            writer.append(records(b"a", ids=[str(number)]))
    journal = journal_at(tmp_path / "events", Interrupted(f"{0:020d}.segment", errno.ENOENT))
    assert offsets_of(asyncio.run(newest_ids(journal, 0, 100, asyncio.Event()))) == [1, 2]


@pytest.mark.parametrize("end", ["stop", "cancel"])
@in_loop
async def test_the_loop_goes_on_meanwhile_and_an_end_waits_for_the_block_that_is_being_read(
    journal: Journal, slow: Slow, end: str
) -> None:
    stop = asyncio.Event()
    reading = asyncio.create_task(newest_ids(journal, 0, 100, stop))
    await until(lambda: slow.read)
    if end == "stop":
        stop.set()
    else:
        reading.cancel()
    await settle()
    assert not reading.done()
    slow.going.set()
    await asyncio.wait([reading])
    assert reading.cancelled() if end == "cancel" else offsets_of(reading.result()) == [4]
    assert slow.read == [BLOCKS - 1]


class Never:
    """A receiver that is not to receive."""

    async def receive(self, intake: Intake) -> None:
        raise ReceiverError("It has received; it was to be stopped before.")


@in_loop
async def test_a_receiver_that_is_stopped_meanwhile_does_not_begin_and_its_lane_is_free(
    journal: Journal, slow: Slow
) -> None:
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(Never(), Hosting(journal.storage.url), stop))
    await until(lambda: slow.read)
    stop.set()
    slow.going.set()
    await serving
    with journal.writer(0) as writer:
        assert writer.end == BLOCKS
