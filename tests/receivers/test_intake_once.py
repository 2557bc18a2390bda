"""Records with message ids: what is sent again is stored once. Time is virtual in all of it."""

import asyncio
import logging

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.receivers.virtual import (
    NO_SPACE,
    Lane,
    enter,
    records,
    run,
    values_of,
)

from headgate.control import OffsetRange
from headgate.errors import JournalError
from headgate.receivers import Intake, IntakeSettings, Receipt


def offsets(start: int, until: int) -> OffsetRange:
    return OffsetRange("events", 0, start, until)


def test_a_record_that_is_sent_again_is_stored_once() -> None:
    async def work() -> None:
        lane = Lane()
        async with Intake(lane.append) as intake:
            first = await enter(intake, records(b"a", b"b", ids=["1", "2"]))
            # While the first is on its way, and after that.
            assert await intake.hand_in(records(b"b", ids=["2"])) == Receipt(offsets(1, 2), 1)
            assert first.result() == Receipt(offsets(0, 2))
            again = await intake.hand_in(records(b"a", b"b", ids=["1", "2"]))
            assert again == Receipt(offsets(0, 2), 2)
            # In part, without an id, and twice in one.
            mixed = records(b"b", b"c", b"-", b"c", ids=["2", "3", None, "3"])
            assert await intake.hand_in(mixed) == Receipt(offsets(2, 4), 2)
            assert lane.values == [b"a", b"b", b"c", b"-"]
            assert intake.statistics.duplicate_records == 5

    run(work())


def test_a_duplicate_of_what_was_not_stored_is_not_acknowledged() -> None:
    async def work() -> None:
        lane = Lane()
        lane.failures = [NO_SPACE]
        async with Intake(lane.append) as intake:
            first = await enter(intake, records(b"a", ids=["1"]))
            second = await enter(intake, records(b"a", ids=["1"]))
            with pytest.raises(JournalError, match="disk is full"):
                await first
            with pytest.raises(JournalError, match=r"'1' was being stored .* send it once more"):
                await second
            assert await intake.hand_in(records(b"a", ids=["1"])) == Receipt(offsets(0, 1))
            assert lane.values == [b"a"]

    run(work())


def test_what_was_stored_of_a_delivery_that_failed_is_not_stored_again() -> None:
    async def work() -> None:
        lane = Lane()
        lane.failures = [None, NO_SPACE]
        async with Intake(lane.append, IntakeSettings(block_bytes=100)) as intake:
            sent = records(*[b"%060d" % i for i in range(2)], ids=["0", "1"])
            with pytest.raises(JournalError, match="disk is full"):
                await intake.hand_in(sent)
            assert await intake.hand_in(sent) == Receipt(offsets(1, 2), 1)
            assert lane.values == values_of(sent)

    run(work())


def test_ids_are_remembered_over_a_restart_as_many_as_were_asked_for() -> None:
    async def work() -> None:
        lane = Lane(start=9)
        async with Intake(lane.append, IntakeSettings(remembered_ids=2)) as intake:
            intake.remember(["1", None, "2", "3"], offsets(5, 9))
            assert await intake.hand_in(records(b"c", ids=["3"])) == Receipt(offsets(8, 9), 1)
            assert await intake.hand_in(records(b"a", ids=["1"])) == Receipt(offsets(9, 10))
            assert await intake.hand_in(records(b"b", ids=["2"])) == Receipt(offsets(10, 11))

    run(work())


sends = st.lists(
    st.tuples(
        st.floats(0, 0.5),  # pause before it (s)
        st.integers(1, 30),  # records
        st.booleans(),  # with ids, taken from a few
        st.booleans(),  # cancelled by its sender soon after
    ),
    max_size=25,
)


@settings(max_examples=60)
@example(  # one that repeats what failed, and then came with one that waits for its memory
    [(0.0, 1, False, False), (0.0, 6, True, False), (0.0, 22, True, False), (0.5, 30, True, False)],
    [False, True],
    5.0,
    300,
)
@given(
    sends,
    st.lists(st.booleans(), max_size=10),
    st.one_of(st.none(), st.floats(5, 500)),
    st.integers(300, 3_000),
)
def test_what_is_acknowledged_is_stored_where_it_says_and_with_an_id_once(
    sends: list[tuple[float, int, bool, bool]],
    failing: list[bool],
    rate: float | None,
    block_bytes: int,
) -> None:
    acknowledged: list[tuple[list[bytes], list[str | None], Receipt]] = []

    async def send(intake: Intake, number: int, count: int, with_ids: bool) -> None:
        ids: list[str | None] = [f"{(number + i) % 40}" if with_ids else None for i in range(count)]
        values = [
            f"{number}.{i}".encode() if id_ is None else f"id {id_}".encode()
            for i, id_ in enumerate(ids)
        ]
        try:
            receipt = await intake.hand_in(records(*values, ids=ids))
        except JournalError:
            return
        acknowledged.append((values, ids, receipt))

    async def work() -> Lane:
        lane = Lane()
        lane.failures = [NO_SPACE if fails else None for fails in failing]
        bounds = IntakeSettings(block_bytes=block_bytes, buffer_bytes=block_bytes + 2_000)
        async with Intake(lane.append, bounds) as intake:
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
            assert intake.statistics.held_bytes == intake.statistics.waiting_records == 0
        return lane

    logging.getLogger("headgate.receivers").setLevel(logging.CRITICAL)
    stored = run(work()).values
    named = [value for value in stored if value.startswith(b"id ")]
    assert len(named) == len(set(named))
    for values, _, receipt in acknowledged:
        assert set(values) <= set(stored)
        if not receipt.duplicates:
            assert stored[receipt.offsets.start : receipt.offsets.until] == values
