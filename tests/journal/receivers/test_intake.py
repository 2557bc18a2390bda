"""The intake: bounded, at a rate, acknowledged when durable. Time is virtual in all of it."""

import asyncio
import logging

import pytest
from tests.journal.receivers.virtual import (
    NO_SPACE,
    Lane,
    enter,
    in_virtual_time,
    lines,
    now_s,
    records,
    thread_takes,
    values_of,
)

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError, OptionError, ReceiverError
from headrace.journal.receivers import Intake, IntakeSettings, Receipt, RetryAfter
from headrace.journal.records import Records


def offsets(start: int, until: int) -> OffsetRange:
    return OffsetRange("events", 0, start, until)


@in_virtual_time
async def test_records_are_acknowledged_when_their_block_is_durable_and_not_before() -> None:
    lane = Lane()
    async with Intake(lane.append) as intake:
        thread_takes(0.05)
        began_s = now_s()
        receipt = await enter(intake, records(b"a", b"b"))
        assert now_s() == began_s
        assert not receipt.done()

        assert await receipt == Receipt(offsets(0, 2))
        assert lane.values == [b"a", b"b"]
        # The time of the append, and nothing else.
        assert now_s() - began_s == pytest.approx(0.05)
        assert intake.statistics.reserved_bytes == 0


@in_virtual_time
async def test_what_comes_at_the_same_time_is_one_block_in_order() -> None:
    lane = Lane(start=70)
    async with Intake(lane.append) as intake:
        receipts = tuple(
            await asyncio.gather(intake.submit(records(b"a")), intake.submit(records(b"b", b"c")))
        )
        assert receipts == (Receipt(offsets(70, 71)), Receipt(offsets(71, 73)))
        assert lane.sizes == [3]


@in_virtual_time
async def test_a_large_block_does_not_wait_for_the_interval() -> None:
    lane = Lane()
    async with Intake(lane.append, IntakeSettings(block_bytes=1_000)) as intake:
        began_s = now_s()
        receipt = await intake.submit(lines(90))
        assert receipt == Receipt(offsets(0, 90))
        assert lane.values == values_of(lines(90))
        # All but the last block are large enough to go at once.
        assert set(lane.times_s[:-1]) == {began_s}
        assert max(lane.sizes) * 50 <= 2_000


@in_virtual_time
async def test_what_nobody_waits_for_gathers_for_an_interval_unless_a_block_is_full() -> None:
    lane = Lane()
    async with Intake(lane.append, IntakeSettings(block_bytes=1_000)) as intake:
        began_s = now_s()
        await intake.submit_nowait(lines(40), is_awaited=False)
        assert now_s() == began_s
        receipts = [
            intake.submit_nowait(records(value), is_awaited=False) for value in (b"a", b"b")
        ]
        await asyncio.wait(receipts)
        assert now_s() - began_s == pytest.approx(0.2)
        assert lane.sizes[-1] == 2


@in_virtual_time
async def test_what_somebody_waits_for_takes_along_what_nobody_waits_for() -> None:
    lane = Lane()
    async with Intake(lane.append) as intake:
        began_s = now_s()
        silent = intake.submit_nowait(records(b"a"), is_awaited=False)
        await asyncio.sleep(0.05)
        assert lane.values == []
        await intake.submit(records(b"b"))
        assert now_s() - began_s == pytest.approx(0.05)
        assert silent.result() == Receipt(offsets(0, 1))
        # The next that nobody waits for has an interval of its own.
        await intake.submit_nowait(records(b"c"), is_awaited=False)
        assert now_s() - began_s == pytest.approx(0.25)


@in_virtual_time
async def test_who_sends_much_at_a_time_gets_large_blocks_and_waits_a_moment_for_them() -> None:
    lane = Lane()
    async with Intake(lane.append) as intake:
        began_s = now_s()
        receipts = []
        for _ in range(20):  # of 320 kB each, one a millisecond
            receipts.append(intake.submit_nowait(lines(1_000, size=280)))
            await asyncio.sleep(0.001)
        await asyncio.wait(receipts)
        assert lane.sizes == [20_000]
        assert now_s() - began_s == pytest.approx(0.022)
        # If it does not end, the interval does.
        receipts = []
        for _ in range(300):
            receipts.append(intake.submit_nowait(lines(20, size=14_000)))
            await asyncio.sleep(0.002)
        await asyncio.wait(receipts)
        assert max(lane.sizes[1:]) <= 20 * 101


@in_virtual_time
async def test_where_each_block_costs_a_request_all_wait_for_the_interval() -> None:
    lane = Lane()
    async with Intake(lane.append, at_once=False) as intake:
        began_s = now_s()
        await asyncio.gather(intake.submit(records(b"a")), intake.submit(records(b"b")))
        assert now_s() - began_s == pytest.approx(0.2)
        assert lane.sizes == [2]


@in_virtual_time
async def test_a_block_gathers_while_the_one_before_is_appended() -> None:
    lane = Lane()
    async with Intake(lane.append) as intake:
        thread_takes(5.0)
        first = await enter(intake, records(b"a"))
        await asyncio.sleep(1)
        rest = [await enter(intake, records(value)) for value in (b"b", b"c")]
        await asyncio.wait([first, *rest])
        assert lane.sizes == [1, 2]


@in_virtual_time
async def test_a_failed_append_fails_its_own_records_and_the_next_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "headrace.receivers")
    lane = Lane()
    lane.failures = [NO_SPACE, None]
    async with Intake(lane.append) as intake:
        first = intake.submit_nowait(records(b"a"))
        second = intake.submit_nowait(records(b"b"))
        with pytest.raises(JournalError, match="disk is full"):
            await first
        with pytest.raises(JournalError, match="disk is full"):
            await second

        assert await intake.submit(records(b"c")) == Receipt(offsets(0, 1))
        assert lane.values == [b"c"]
        assert intake.statistics.failed_records == 2
        assert intake.statistics.stored_records == 1
        assert intake.statistics.reserved_bytes == 0
    assert "The journal did not store 2 records: The disk is full" in caplog.text


@in_virtual_time
async def test_closing_makes_buffered_records_durable_and_rejects_the_rest() -> None:
    lane = Lane()
    intake = Intake(lane.append)
    with pytest.raises(ReceiverError, match="accepts no more records"):
        await enter(intake, records(b"too early"))
    async with intake:
        intake.set_rate(1)
        taken = await enter(intake, records(b"a"))
        waiting = asyncio.create_task(intake.submit(records(b"b")))
        just_now = asyncio.create_task(intake.submit(records(b"c")))
        await asyncio.sleep(0)
        began_s = now_s()
        await intake.close()

        assert now_s() == began_s
        assert taken.result() == Receipt(offsets(0, 1))
        for refused in (waiting, just_now):
            with pytest.raises(ReceiverError, match="accepts no more records"):
                await refused
        with pytest.raises(ReceiverError, match="accepts no more records"):
            await intake.submit(records(b"d"))
        with pytest.raises(ReceiverError, match="accepts no more records"):
            intake.try_submit(records(b"d"))
        assert lane.values == [b"a"]


@in_virtual_time
async def test_records_that_never_fit_are_refused() -> None:
    settings = IntakeSettings(block_bytes=100, max_memory_bytes=4_000)
    async with Intake(Lane().append, settings) as intake:
        with pytest.raises(
            ReceiverError, match=r"1 records with 2000 bytes .* 1000 bytes, .*; submit"
        ):
            await intake.submit(records(b"x" * 2_000))
        # Empty records take memory too.
        with pytest.raises(ReceiverError, match="100 records with 0 bytes"):
            await intake.submit(records(*[b""] * 100))


@in_virtual_time
async def test_submissions_wait_and_memory_stays_bounded() -> None:
    async def send(intake: Intake, times: int) -> None:
        for _ in range(times):
            await enter(intake, lines(7))

    lane = Lane()
    bound = 20_000
    most = 0

    def append(block: Records) -> OffsetRange:
        nonlocal most
        most = max(most, intake.statistics.reserved_bytes)
        return lane.append(block)

    async with Intake(
        append, IntakeSettings(block_bytes=5_000, max_memory_bytes=4 * bound)
    ) as intake:
        thread_takes(1.0)  # 5 000 bytes a second, from senders who could send any amount
        senders = [asyncio.create_task(send(intake, 20)) for _ in range(10)]
        await asyncio.wait(senders)
    assert len(lane.values) == 10 * 20 * 7
    assert bound * 0.9 < most <= bound
    assert intake.statistics.reserved_bytes == 0


@in_virtual_time
async def test_a_sender_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    lane = Lane()
    async with Intake(lane.append) as intake:
        intake.set_rate(1)
        assert await intake.submit(records(b"a"))
        left = asyncio.create_task(intake.submit(records(b"b", ids=["1"])))
        stays = asyncio.create_task(intake.submit(records(b"c")))
        await asyncio.sleep(0.1)
        left.cancel()
        await stays
        assert lane.values == [b"a", b"c"]
        assert intake.statistics.reserved_bytes == intake.statistics.waiting_records == 0
        # The id of what was not stored is new when it comes again.
        assert await intake.submit(records(b"b", ids=["1"])) == Receipt(offsets(2, 3))


@in_virtual_time
async def test_a_stop_at_any_moment_withdraws_what_waits_and_answers_for_what_is_buffered() -> None:
    lane = Lane()
    async with Intake(lane.append, IntakeSettings(block_interval_ms=1)) as intake:
        intake.set_rate(100)
        receipts: list[asyncio.Task[Receipt]] = []

        async def send() -> None:
            while True:
                receipts.append(intake.submit_nowait(lines(intake.records_at_once)))
                await intake.buffered(receipts[-1])

        for turns in range(60):
            before = len(lane.values)
            sending = asyncio.create_task(send())
            for _ in range(turns):
                await asyncio.sleep(0.01)
            sending.cancel()
            await asyncio.wait([sending, *receipts])
            answered = sum(10 for each in receipts if not each.cancelled())
            assert len(lane.values) - before == answered
            receipts.clear()


@pytest.mark.integration
@pytest.mark.parametrize("size", [1, 7, 1_000])
@in_virtual_time
async def test_a_sender_ten_times_too_fast_is_admitted_at_the_rate(size: int) -> None:
    lane = Lane()
    rate = 500
    async with Intake(lane.append) as intake:
        intake.set_rate(rate)
        began_s = now_s()
        sent = 0
        while now_s() < began_s + 12:
            await enter(intake, lines(size))
            sent += size
            await asyncio.sleep(size / (10 * rate))
        took_s = now_s() - began_s
        assert (sent - rate) / took_s == pytest.approx(rate, rel=0.05)


@in_virtual_time
async def test_a_rate_of_bytes_holds_as_one_of_records() -> None:
    lane = Lane()
    async with Intake(lane.append) as intake:
        intake.set_rate(1_000, bytes_per_s=5_000)  # of lines of 10 bytes: 500 a second
        began_s = now_s()
        for _ in range(200):
            await enter(intake, lines(100))
        took_s = now_s() - began_s
        assert (20_000 - 500) / took_s == pytest.approx(500, rel=0.05)


@in_virtual_time
async def test_no_window_of_time_sees_more_than_the_rate_and_one_seconds_worth() -> None:
    lane = Lane()
    async with Intake(lane.append, IntakeSettings(block_interval_ms=1)) as intake:
        intake.set_rate(100)
        await intake.submit(lines(350))
        await asyncio.sleep(50)
        await intake.submit(lines(350))

        stored = list(zip(lane.times_s, lane.sizes, strict=True))
        for first, (start_s, _) in enumerate(stored):
            for last in range(first, len(stored)):
                count = sum(size for _, size in stored[first : last + 1])
                assert count <= 100 * (stored[last][0] - start_s + 1) + 1


@in_virtual_time
async def test_a_new_rate_applies_to_waiting_records() -> None:
    lane = Lane()
    async with Intake(lane.append) as intake:
        intake.set_rate(0.01)
        await intake.submit(records(b"a"))
        waiting = asyncio.create_task(intake.submit(records(b"b")))
        await asyncio.sleep(1)
        assert intake.statistics.waiting_records == 1
        began_s = now_s()

        intake.set_rate(1_000)
        await waiting
        assert now_s() - began_s < 0.3

        intake.set_rate(1e-6)
        waiting = asyncio.create_task(intake.submit(records(b"c", b"d")))
        await asyncio.sleep(1)
        intake.set_rate(None)
        await waiting
        assert lane.values == [b"a", b"b", b"c", b"d"]


@in_virtual_time
async def test_a_rate_that_falls_while_many_wait_lets_in_no_more_than_the_new_one() -> None:
    lane = Lane()
    async with Intake(lane.append) as intake:
        intake.set_rate(10_000)
        waiting = asyncio.create_task(intake.submit(lines(30_000)))
        await asyncio.sleep(1)
        intake.set_rate(10)
        before = 30_000 - intake.statistics.waiting_records
        await asyncio.sleep(100)
        assert 30_000 - intake.statistics.waiting_records - before <= 10 * 101
        intake.set_rate(None)
        assert await waiting == Receipt(offsets(0, 30_000))


@pytest.mark.parametrize("rates", [(0.0, None), (5.0, -1.0), (float("nan"), 5.0)])
@in_virtual_time
async def test_a_rate_that_is_refused_changes_nothing(rates: tuple[float, float | None]) -> None:
    async with Intake(Lane().append) as intake:
        intake.set_rate(100, 1e6)
        with pytest.raises(OptionError, match="rate_per_s"):
            intake.set_rate(*rates)
        began_s = now_s()
        await enter(intake, lines(300))
        assert now_s() - began_s == pytest.approx(2.0, rel=0.05)


@in_virtual_time
async def test_try_submit_starts_or_says_when_to_retry() -> None:
    lane = Lane()
    async with Intake(lane.append) as intake:
        intake.set_rate(10)
        taken = intake.try_submit(lines(10))
        assert isinstance(taken, asyncio.Task)
        assert await taken == Receipt(offsets(0, 10))
        await asyncio.sleep(0.2)  # 2 tokens are back

        intake.set_rate(1)
        await intake.submit(records(b"x"))  # takes the last of them
        await asyncio.sleep(0.2)
        later = intake.try_submit(records(b"y"))
        assert isinstance(later, RetryAfter)
        assert later.delay_s == pytest.approx(0.8)
        assert isinstance(intake.try_submit(records(b"y"), wait_s=0.9), asyncio.Task)
        await asyncio.sleep(0)
        # Records that come now would wait for that one too.
        behind = intake.try_submit(records(b"z"), wait_s=0.9)
        assert isinstance(behind, RetryAfter)
        assert behind.delay_s == pytest.approx(1.8)


@in_virtual_time
async def test_try_submit_without_memory_says_when_to_retry() -> None:
    lane = Lane()
    settings = IntakeSettings(block_bytes=500, max_memory_bytes=4_000)
    async with Intake(lane.append, settings) as intake:
        taken = intake.try_submit(lines(15))
        assert isinstance(taken, asyncio.Task)
        assert intake.try_submit(lines(15)) == RetryAfter(0.2)
        await taken
        assert isinstance(intake.try_submit(lines(15)), asyncio.Task)
