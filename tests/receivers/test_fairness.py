"""Senders whose requests take much work, or a place for long, beside those of others."""

import asyncio
import gzip
from typing import Any

import pytest
from tests.receivers.serving import BYTES, POST, in_loop, served, until

from headrace.receivers import IntakeSettings
from headrace.receivers.connections import FAST_BYTES_PER_S, Connections
from headrace.receivers.turns import Turns

pytestmark = pytest.mark.nightly

ONE_BYTE_CHUNKS = b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n"
EMPTY_MEMBERS = gzip.compress(b"") * 200_000


@pytest.mark.parametrize(
    ("hostile", "value"),
    [
        (ONE_BYTE_CHUNKS, b"a" * 100_000),
        (
            b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(EMPTY_MEMBERS)
            + EMPTY_MEMBERS,
            b"",
        ),
    ],
    ids=["chunks of one byte", "empty gzip members"],
)
@in_loop
async def test_a_request_is_answered_while_a_body_that_takes_long_is_still_parsed(
    hostile: bytes, value: bytes
) -> None:
    async with served() as it:
        others = [asyncio.create_task(it.raw(POST + hostile)) for _ in range(3)]
        await asyncio.sleep(0)
        for _ in range(3):
            assert (await it.post(b"good", BYTES)).status_code == 200
        assert it.journal.values == [b"good"] * 3
        for other in others:
            reader, writer = await other
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        assert it.journal.values[3:] == [value] * 3


@in_loop
async def test_who_waits_for_a_turn_gets_one_in_its_order_and_each_round_has_one() -> None:
    turns, rounds = Turns(), 0
    taken: list[tuple[str, int]] = []

    async def work(name: str) -> None:
        for _ in range(2):
            await turns.wait()
            taken.append((name, rounds))

    working = asyncio.gather(work("a"), work("b"), work("c"))
    while not working.done():
        await asyncio.sleep(0)
        rounds += 1
    assert [name for name, _ in taken] == ["a", "b", "c"] * 2
    numbers = [number for _, number in taken]
    assert numbers == list(range(numbers[0], numbers[0] + 6))


@in_loop
async def test_a_turn_that_its_waiter_gave_up_goes_to_the_next() -> None:
    turns = Turns()
    first, second = (asyncio.create_task(turns.wait()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()


def test_the_slowest_goes_when_another_one_comes_and_no_body_that_comes_fast() -> None:
    now_s = 0.0
    gone: list[str] = []
    connections = Connections(3, lambda: now_s)
    for name in ("slow", "fast", "slower"):
        assert connections.admit(name, lambda name=name: gone.append(name))  # type: ignore[misc]
        connections.sending(name, 10)
    now_s = 2.0
    connections.sending("slow", FAST_BYTES_PER_S)
    connections.sending("fast", 3 * FAST_BYTES_PER_S)
    connections.sending("slower", 5)
    for name in ("x", "y"):
        assert connections.admit(name, lambda: None)
        connections.busy(name)
    assert gone == ["slower", "slow"]
    assert not connections.admit("z", lambda: None)
    assert not connections.evict_slowest_body()
    now_s = 3.5
    assert connections.evict_slowest_body()
    assert gone == ["slower", "slow", "fast"]


@in_loop
async def test_a_slow_body_gives_its_place_to_another_sender_and_is_answered_so() -> None:
    async with served(max_connections=2) as it:
        slow = [await it.raw_post(100, b"x") for _ in range(2)]
        await until(lambda: len(slow) == 2)
        assert (await it.post(b"good", BYTES)).status_code == 200
        answer = await slow[0][0].read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"came slowly" in answer
        assert it.intake.rejections.totals == {"slow body": 1}
        slow[1][1].write(b"y" * 99)
        assert (await slow[1][0].readline()).startswith(b"HTTP/1.1 200 ")
        for _, writer in slow:
            writer.close()


@in_loop
async def test_a_slow_body_gives_its_memory_to_another_sender() -> None:
    body: dict[str, Any] = {
        "max_body_bytes": 60_000,
        "max_decompressed_bytes": 60_000,
        "intake_settings": IntakeSettings(10, block_bytes=1_000, max_memory_bytes=250_000),
    }
    async with served(**body) as it:
        reader, writer = await it.raw_post(60_000, b"x" * 50_000)
        answer = await it.post(b"y" * 20_000, BYTES)
        while answer.status_code != 200:  # as soon as it has become slow
            assert answer.status_code == 429
            answer = await it.post(b"y" * 20_000, BYTES)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        assert it.intake.rejections.totals["slow body"] == 1
        writer.close()


@in_loop
async def test_a_body_that_comes_byte_by_byte_is_taken_whole_and_in_order() -> None:
    async with served() as it:
        reader, writer = await it.raw_post(40, b"")
        for number in range(40):
            writer.write(b"%d" % (number % 10))
            for _ in range(10):
                await asyncio.sleep(0)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        assert it.journal.values == [b"0123456789" * 4]
        writer.close()


@pytest.mark.parametrize(
    ("part_bytes", "took_s", "following"),
    [(256, 0.01, 512), (256, 0.5, 256), (256, 0.9, 128), (32, 9.0, 32), (1_000, 0.0, 1_024)],
)
def test_parts_of_data_get_larger_while_they_take_little_time(
    part_bytes: int, took_s: float, following: int
) -> None:
    assert Turns(slice_s=1.0).next_part_bytes(part_bytes, took_s, 1_024) == following
