"""The real OpenTelemetry Collector at 413, 429, 503, without an answer and without a receiver.

Requests that it answered 200 are the record that the receiver's journal is compared with.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from tests.receivers.senders import Counter, orders, without_answers
from tests.receivers.serving import in_loop, until
from tests.services.collector import Collector, collector, collector_program

pytestmark = [pytest.mark.nightly, pytest.mark.soak]


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """So that no test's deadline has the build in it."""
    collector_program()


async def post(to: Collector, numbers: Iterable[int], size: int = 0) -> list[int]:
    """Post a log for each number in a request of its own; answers those that were taken."""
    taken = []
    async with httpx.AsyncClient(trust_env=False) as client:
        for number in numbers:
            log = {"body": {"stringValue": f"order {number}"}, "severityText": "x" * size}
            body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [log]}]}]}
            async with asyncio.timeout(30):
                while (answer := await _answer(client, to.url, body)) is None:
                    await asyncio.sleep(0.05)  # it starts
            assert answer == 200
            taken.append(number)
    return taken


async def _answer(client: httpx.AsyncClient, url: str, body: object) -> int | None:
    try:
        return (await client.post(url, json=body)).status_code
    except httpx.ConnectError:
        return None


@in_loop
async def test_it_sends_again_at_503_and_429_and_when_nobody_is_there(tmp_path: Path) -> None:
    counter = Counter(wait_s=0)
    async with collector(tmp_path, counter.url) as sender:
        taken = await post(sender, range(10))
        await until(lambda: "Exporting failed" in sender.said)  # it is away
        async with counter.open() as intake:
            await until(lambda: len(orders(counter)) == 10)
            counter.fail(2)
            taken += await post(sender, range(10, 20))
            await until(lambda: len(orders(counter)) == 20)
            intake.set_rate(10)
            taken += await post(sender, range(20, 50))
            await until(lambda: len(orders(counter)) == 50)
    assert sorted(orders(counter)) == taken == [*range(50)]
    assert counter.rejections["HTTP 503"] >= 1
    assert counter.rejections["HTTP 429"] >= 1


@in_loop
async def test_it_drops_what_is_too_large_and_doubles_what_was_not_answered(tmp_path: Path) -> None:
    counter = Counter(max_body_bytes=2_000, max_decompressed_bytes=2_000)
    async with (
        counter.open(),
        without_answers(counter.port, 1) as port,
        collector(tmp_path, f"http://127.0.0.1:{port}") as sender,
    ):
        await post(sender, [1])
        await until(lambda: len(orders(counter)) == 2)
        await post(sender, [2], size=5_000)
        await until(lambda: counter.rejected("HTTP 413"))
        await post(sender, [3])
        await until(lambda: 3 in orders(counter))
        await until(lambda: "Dropping data" in sender.said)
    assert orders(counter) == [1, 1, 3]
    assert counter.rejections == {"HTTP 413": 1}
