"""The real syslog-ng, sending syslog over TCP by octet counting: what comes, what waits, what not.

The file that it follows is the record of what is sent.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.receivers.senders import lines_of, syslog_ng
from tests.receivers.serving import DEADLINE_S, Journal, in_loop, receiving, until

from headrace.local.servers import free_ports
from headrace.receivers import IntakeSettings, TcpReceiver, TcpSettings

pytestmark = pytest.mark.nightly

SENT = [b'{"order":%d, "text":"%b"}' % (number, b"x" * number * 50) for number in range(20)]

DESTINATION = """
syslog(
    "127.0.0.1"
    transport("tcp")
    port({port})
    time-reopen(1)
    persist-name("headrace")
    disk-buffer(reliable(yes) disk-buf-size(1048576) dir("{folder}"))
);
"""


def destination(folder: Path, port: int) -> str:
    """As docs/network.md has it."""
    return DESTINATION.format(folder=folder, port=port)


def octet_counting(port: int, **settings: Any) -> TcpReceiver:
    made = TcpSettings(port=port, framing="octet-counting", **settings)
    return TcpReceiver(made, stop_s=DEADLINE_S).listen()


def texts(journal: Journal) -> list[bytes]:
    r"""Return the text after RFC 5424's header of each message, which syslog-ng ends by ``\n``."""
    header = re.compile(rb"<\d+>1 [0-9T:.+-]+ \S+ \S+ \S+ \S+ (?:-|\[[^]]*\]) (?:\xef\xbb\xbf)?")
    assert all(value.endswith(b"\n") for value in journal.values)
    return [header.sub(b"", value, count=1).removesuffix(b"\n") for value in journal.values]


@in_loop
async def test_messages_wait_for_a_receiver_that_is_away_and_for_the_rate(tmp_path: Path) -> None:
    journal = Journal()
    (port,) = free_ports(1)
    settings = IntakeSettings(block_interval_ms=1)
    async with syslog_ng(tmp_path, destination(tmp_path, port)) as sent:
        lines_of(sent, SENT[:10])
        await asyncio.sleep(1)  # it is away
        async with receiving(octet_counting(port), journal, settings) as intake:
            await until(lambda: len(journal.values) == 10)
            assert journal.values[0].startswith(b"<"), "the header is part of the record"
            intake.set_rate(20)
            lines_of(sent, SENT[10:] + SENT + SENT)
            await until(lambda: intake.statistics.waiting_records)
            await until(lambda: len(journal.values) == 60)
            assert intake.rejections.totals == {}
    assert texts(journal) == SENT * 3


@in_loop
async def test_after_a_message_that_is_too_long_it_connects_again_and_does_not_repeat_it(
    tmp_path: Path,
) -> None:
    journal = Journal()
    (port,) = free_ports(1)
    settings = IntakeSettings(block_interval_ms=1)
    async with (
        receiving(octet_counting(port, max_line_bytes=500), journal, settings) as intake,
        syslog_ng(tmp_path, destination(tmp_path, port)) as sent,
    ):
        lines_of(sent, SENT[:5])
        await until(lambda: len(journal.values) == 5)
        lines_of(sent, [b"y" * 600])
        await until(lambda: intake.rejections.totals["not taken"])
        later: list[bytes] = []
        while len(journal.values) == 5:  # what it sends before it sees the end is lost
            later.append(b"later %d" % len(later))
            lines_of(sent, later[-1:])
            await asyncio.sleep(0.2)
        lines_of(sent, [b"last"])
        await until(lambda: texts(journal)[-1] == b"last")
        assert intake.rejections.totals["not taken"] == 1
    arrived = texts(journal)[5:-1]
    assert arrived == later[len(later) - len(arrived) :]
    assert texts(journal)[:5] == SENT[:5]
