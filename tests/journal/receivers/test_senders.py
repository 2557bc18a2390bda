"""Programs that people send with, each at 413, 429, 503, without an answer and without a receiver.

The records that each is given to send are compared with its journal: those that the program calls
sent are there, and those that are there twice are named.
"""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.journal.receivers.brokered import TOPIC, mqtt, subscribe
from tests.journal.receivers.senders import (
    Counter,
    lines,
    lines_of,
    run_program,
    syslog_ng,
    without_answers,
)
from tests.journal.receivers.serving import Journal, in_loop, receiving, until
from tests.services.debian import program
from tests.services.mosquitto import Mosquitto

from headrace.errors import JournalError

pytestmark = pytest.mark.nightly

SENT = [f'{{"order":{number}}}'.encode() for number in range(20)]

CURL_RETRIES = ("--retry", "5", "--retry-connrefused", "--retry-delay", "1", "--fail-with-body")


async def curl(file: Path, url: str, *options: str) -> tuple[int, str]:
    """As docs/network.md has it."""
    found = program("curl")
    kind = ("-H", "Content-Type: application/x-ndjson")
    arguments = ["-sS", *CURL_RETRIES, *options, *kind, "--data-binary", f"@{file}"]
    return await run_program(found.path, *arguments, f"{url}/records", variables=found.variables)


@in_loop
async def test_curl_tries_again_at_503_and_at_429(tmp_path: Path) -> None:
    counter = Counter(wait_s=0)
    async with counter.open() as intake:
        counter.fail(1)
        assert (await curl(lines(tmp_path, range(20)), counter.url))[0] == 0
        assert counter.journal.values == SENT
        # The first may pass at once; then the second waits for 20 s, and the third is refused.
        intake.set_rate(1, None)
        sent = asyncio.gather(*(curl(lines(tmp_path, range(20)), counter.url) for _ in range(3)))
        await until(lambda: counter.rejected("HTTP 429"))
        intake.set_rate(1_000, None)
        assert [status for status, _ in await sent] == [0, 0, 0]
    assert counter.journal.values == SENT * 4
    assert counter.rejections["HTTP 503"] == 1
    assert counter.rejections["HTTP 429"] >= 1


@in_loop
async def test_curl_gives_up_at_413_and_says_so(tmp_path: Path) -> None:
    counter = Counter(max_body_bytes=100)
    async with counter.open():
        status, said = await curl(lines(tmp_path, range(20)), counter.url)
    assert status == 22
    assert "send it in parts" in said
    assert counter.journal.values == []
    assert counter.rejections == {"HTTP 413": 1}


@in_loop
async def test_curl_waits_for_a_receiver_that_is_away(tmp_path: Path) -> None:
    counter = Counter()
    sending = asyncio.create_task(curl(lines(tmp_path, range(20)), counter.url))
    await asyncio.sleep(0.5)
    async with counter.open():
        assert (await sending)[0] == 0
    assert counter.journal.values == SENT


@in_loop
async def test_what_curl_sends_again_after_a_lost_answer_is_there_once_with_an_id(
    tmp_path: Path,
) -> None:
    counter = Counter()
    file = lines(tmp_path, range(20))
    async with counter.open():
        for options, expected in [
            ((), (52, SENT)),  # not tried again: curl cannot know whether it was taken
            (("--retry-all-errors",), (0, SENT * 3)),  # and this time twice
            (("--retry-all-errors", "-H", "Headrace-Message-Id: orders-1"), (0, SENT * 4)),
        ]:
            async with without_answers(counter.port, 1) as port:
                status, _ = await curl(file, f"http://127.0.0.1:{port}", *options)
            assert (status, counter.journal.values) == expected


REQUESTS = """
import sys
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

again = Retry(
    total=8,
    status_forcelist=[408, 429, 500, 502, 503, 504],
    allowed_methods=None,
    backoff_factor=0.2,
    raise_on_status=False,
)
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=again))
url, number = sys.argv[1:]
answer = session.post(
    url + "/records",
    data=sys.stdin.buffer.read(),
    headers={"Content-Type": "application/x-ndjson", "Headrace-Message-Id": number},
    timeout=60,
)
print(answer.status_code, answer.text)
"""


async def send_with_requests(url: str, number: str = "orders-1") -> str:
    body = b"\n".join(SENT)
    status, said = await run_program(sys.executable, "-c", REQUESTS, url, number, stdin=body)
    assert status == 0, said
    return said


@in_loop
async def test_requests_tries_again_and_what_it_doubles_is_stored_once() -> None:
    counter = Counter(wait_s=0)
    sending = asyncio.create_task(send_with_requests(counter.url))
    await asyncio.sleep(0.5)  # it is away
    async with counter.open() as intake:
        assert (await sending).startswith("200")
        counter.fail(2)
        assert (await send_with_requests(counter.url, "orders-2")).startswith("200")
        # The first may pass at once; then the second waits for 20 s, and the third is refused.
        intake.set_rate(1, None)
        numbers = ("orders-3", "orders-4", "orders-5")
        sent = asyncio.gather(*(send_with_requests(counter.url, number) for number in numbers))
        await until(lambda: counter.rejected("HTTP 429"))
        intake.set_rate(None, None)
        assert [each[:3] for each in await sent] == ["200", "200", "200"]
        async with without_answers(counter.port, 2) as port:
            said = await send_with_requests(f"http://127.0.0.1:{port}", "orders-6")
        assert '"duplicates":20' in said
    assert counter.journal.values == SENT * 6
    assert counter.rejections["HTTP 503"] == 2
    assert counter.rejections["HTTP 429"] >= 1


@in_loop
async def test_requests_shows_413_to_its_caller() -> None:
    counter = Counter(max_body_bytes=100)
    async with counter.open():
        assert (await send_with_requests(counter.url)).startswith("413")
    assert counter.journal.values == []
    assert counter.rejections == {"HTTP 413": 1}


HTTP_DESTINATION = """
http(
    url("{url}/records")
    method("POST")
    headers("Content-Type: application/x-ndjson")
    body("${{MESSAGE}}")
    batch-lines(5)
    batch-timeout(100)
    retries(100)
    time-reopen(1)
    persist-name("headrace")
    response-action(408 => disconnect, 413 => drop, 429 => disconnect, 503 => disconnect)
    disk-buffer(reliable(yes) disk-buf-size(1048576) dir("{folder}"))
);
"""


def http_destination(folder: Path, url: str) -> str:
    return HTTP_DESTINATION.format(folder=folder, url=url)


@in_loop
async def test_syslog_ng_sends_again_at_503_and_429_and_when_nobody_is_there(
    tmp_path: Path,
) -> None:
    counter = Counter(wait_s=0)
    async with syslog_ng(tmp_path, http_destination(tmp_path, counter.url)) as sent:
        lines_of(sent, SENT[:10])
        await asyncio.sleep(1)  # it is away
        async with counter.open() as intake:
            await until(lambda: len(counter.journal.values) == 10)
            counter.fail(2)
            lines_of(sent, SENT[10:])
            await until(lambda: len(counter.journal.values) == 20)
            intake.set_rate(10, None)
            lines_of(sent, SENT + SENT)
            await until(lambda: len(counter.journal.values) == 60)
    assert counter.journal.values == SENT * 3
    assert counter.rejections["HTTP 503"] == 2
    assert counter.rejections["HTTP 429"] >= 1


@in_loop
async def test_syslog_ng_drops_what_is_too_large_and_doubles_what_was_not_answered(
    tmp_path: Path,
) -> None:
    counter = Counter(max_body_bytes=100)
    async with (
        counter.open(),
        without_answers(counter.port, 1) as port,
        syslog_ng(tmp_path, http_destination(tmp_path, f"http://127.0.0.1:{port}")) as sent,
    ):
        lines_of(sent, SENT[:5])
        await until(lambda: len(counter.journal.values) == 10)
        assert counter.journal.values == SENT[:5] * 2
        lines_of(sent, [b'"' + b"x" * 200 + b'"'])
        await until(lambda: counter.rejected("HTTP 413"))
        lines_of(sent, SENT[5:6])
        await until(lambda: len(counter.journal.values) == 11)
    assert counter.journal.values == [*SENT[:5], *SENT[:5], SENT[5]]


@in_loop
async def test_mosquitto_pub_is_done_when_the_broker_has_it_and_the_receiver_may_be_away(
    tmp_path: Path,
) -> None:
    found = program("mosquitto_pub")
    with Mosquitto(tmp_path) as broker:
        receiver = mqtt(broker.url)
        await subscribe(receiver)
        options = ["-V", "5", "-p", str(broker.port), "-q", "1", "-t", TOPIC, "-l"]
        status, said = await run_program(
            found.path, *options, stdin=b"\n".join(SENT), variables=found.variables
        )
        assert (status, said) == (0, "")
        journal = Journal()
        journal.failures.append(JournalError("The disk is full."))
        async with receiving(mqtt(broker.url), journal):
            await until(lambda: set(journal.values) == set(SENT))
    twice = len(journal.values) - len(SENT)
    assert 0 <= twice < len(SENT), "only what was not acknowledged with the others comes again"
