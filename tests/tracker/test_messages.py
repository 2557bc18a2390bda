"""What tasks and tracker say to each other, and whatever else may come instead."""

import asyncio
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.receivers.serving import run

from headrace.errors import ReceiverError
from headrace.tracker.messages import (
    MAX_LINE_BYTES,
    Order,
    Report,
    decode_order,
    encode_order,
    read_line,
)

TEXT = st.text(max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@given(st.builds(Report, TEXT, TEXT, st.booleans(), st.none() | TEXT))
def test_a_report_comes_as_it_was_sent_and_is_one_short_line(report: Report) -> None:
    line = report.encode()
    assert Report.decode(line) == report
    assert line.count(b"\n") == 1
    assert len(line) < MAX_LINE_BYTES


@pytest.mark.parametrize("order", Order)
def test_an_order_comes_as_it_was_sent(order: Order) -> None:
    assert decode_order(encode_order(order)) is order


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 4_000)
@example(b'{"order": ["stop"]}')
@example(b'{"token": "t", "host": "h", "receiving": 1, "address": null}')
@example(b'{"token": null, "host": "h", "receiving": true, "address": null}')
def test_what_is_neither_is_refused(line: bytes) -> None:
    with pytest.raises(ReceiverError, match="no report"):
        Report.decode(line)
    with pytest.raises(ReceiverError, match="no order"):
        decode_order(line)


def test_a_report_does_not_show_its_token() -> None:
    assert "s3cret" not in repr(Report("s3cret", "host"))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"x" * (MAX_LINE_BYTES + 1) + b"\n", "longer than 4096 bytes"),
        (b"half a line", "closed"),
        (b"", "closed"),
    ],
)
def test_a_line_is_bounded_and_whole(sent: bytes, why: str) -> None:
    async def work() -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        reader.feed_data(sent)
        reader.feed_eof()
        with pytest.raises(ReceiverError, match=why):
            await read_line(reader, 60)

    run(work())


def test_silence_ends_the_wait_for_a_line() -> None:
    async def work() -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        reader.feed_data(b"half a line")
        with pytest.raises(ReceiverError, match=r"Nothing was heard for 0\.01 s"):
            await read_line(reader, 0.01)

    run(work())
