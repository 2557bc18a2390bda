"""Messages of syslog: however the bytes are divided, the same records and errors."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.receivers.virtual import values_of

from headrace.errors import ReceiverError
from headrace.receivers import TcpSettings
from headrace.receivers.line_buffer import LineBuffer
from headrace.receivers.memory_budget import MemoryBudget
from headrace.receivers.message_buffer import AutoBuffer, MessageBuffer, NulBuffer
from headrace.receivers.sender_buffer import MOST_AT_ONCE, SenderBuffer

LONGEST = 40

contents = st.binary(min_size=1, max_size=LONGEST)
wrong = st.sampled_from(
    [b"", b"<34>1 - -\n", b"0 ", b"05 hello", b"5\nhello", b" ", b"-1 a", b"41 ", b"999", b"12",
     b"7 hello"]
)  # fmt: skip


def framed(messages: list[bytes]) -> bytes:
    return b"".join(b"%d %b" % (len(each), each) for each in messages)


def taken(
    data: bytes,
    cuts: list[int],
    kind: type[SenderBuffer] = MessageBuffer,
    **settings: object,
) -> tuple[list[bytes], str]:
    """Return the messages taken of data in these pieces, and the error of the next one."""
    room = MemoryBudget(1_000)
    buffer = kind(TcpSettings(max_line_bytes=LONGEST, **settings), room)  # type: ignore[arg-type]
    values: list[bytes] = []
    start = 0
    try:
        for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
            if whole := buffer.add(data[start:end]):
                records, error = buffer.records(whole, 1)
                values += values_of(records)
                if error:
                    raise error
            if kind is MessageBuffer:
                assert room.reserved_bytes <= LONGEST + 3, "no more than a message and its length"
            buffer.check()
            start = end
        assert buffer.is_unfinished == (room.reserved_bytes > 0)
        if buffer.is_unfinished:
            raise buffer.cut_off()
    except ReceiverError as error:
        return values, str(error)
    finally:
        buffer.close()
        assert room.reserved_bytes == 0
    return values, ""


@given(st.lists(contents, max_size=8), wrong, st.lists(st.integers(0, 300), max_size=20))
@example([b"hello"], b"<", [0, 1, 2])
def test_the_same_messages_are_taken_wherever_the_bytes_are_divided(
    messages: list[bytes], rest: bytes, cuts: list[int]
) -> None:
    data = framed(messages) + rest
    values, error = taken(data, cuts)
    assert values == messages
    assert bool(error) == bool(rest)
    assert error.startswith(f"Message {len(messages) + 1} " if rest else "")
    assert (values, error) == taken(data, [*range(len(data))]), "byte by byte"


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=20))
def test_whatever_comes_is_the_same_in_one_piece_and_in_many(data: bytes, cuts: list[int]) -> None:
    assert taken(data, cuts) == taken(data, [])


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"<34>1 -", "has b'<' where its length or the space after that must be"),
        (b"05 hello", "has b'0' where its length"),
        (b"5\nhello", r"has b'\n' where its length"),
        (b"41 ", "is longer than the 40 bytes that a message may have"),
        (b"999", "is longer than the 40 bytes that a message may have"),
        (b"9" * 5_000, "is longer than the 40 bytes that a message may have"),
        (b"5 hell", "is shorter than its length says, and was not stored"),
        (b"12", "is shorter than its length says, and was not stored"),
    ],
)
def test_what_is_no_message_is_refused_in_one_sentence(data: bytes, error: str) -> None:
    values, said = taken(b"1 a" + data, [])
    assert values == [b"a"]
    assert said.startswith(f"Message 2 {error}")


def test_a_message_may_be_json_of_several_lines_and_have_an_id() -> None:
    good = b'{"id":\n"a"}'
    assert taken(framed([good, b"2"]), [], check_json=True) == ([good, b"2"], "")
    values, error = taken(framed([good, b'{"id":', b"2"]), [], check_json=True)
    assert values == [good]
    assert error.startswith("Message 2 is not JSON: ")
    values, error = taken(framed([good, b'{"x":1}']), [], id_field="id")
    assert values == [good]
    assert error.startswith("Message 2 has no message id: it must be a JSON object whose field")


def test_many_messages_are_made_records_in_parts() -> None:
    data = b"1 a" * (2 * MOST_AT_ONCE + 5)
    buffer = MessageBuffer(TcpSettings(), MemoryBudget(1_000))
    parts = [*buffer.parts_of(buffer.add(data))]
    assert [len(part) // 3 for part in parts] == [MOST_AT_ONCE, MOST_AT_ONCE, 5]
    assert b"".join(parts) == data


def test_all_unfinished_messages_have_one_budget() -> None:
    room = MemoryBudget(1_000)
    one, other = (MessageBuffer(TcpSettings(), room) for _ in range(2))
    assert one.add(b"800 " + b"x" * 700) == b""
    one.check()
    assert other.add(b"800 " + b"y" * 700) == b""
    with pytest.raises(ReceiverError, match="The unfinished messages of all senders have no more"):
        other.check()
    assert one.add(b"x" * 100) == b"800 " + b"x" * 800
    assert room.reserved_bytes == 0


KINDS = [MessageBuffer, NulBuffer, AutoBuffer, LineBuffer]
PIECES = [
    b"<14>",
    b"<34>1 a",
    b"\n",
    b"\0",
    b"\r",
    b"5 hello",
    b"7 <14>a\nb",
    b"x",
    b"<",
    b" ",
    b"41 ",
]


@given(
    st.sampled_from(KINDS),
    st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join),
    st.lists(st.integers(0, 120), max_size=20),
)
@example(LineBuffer, b"<14>a\n<14>b\0", [])
@example(AutoBuffer, b"<14>a\n12 x", [])
def test_each_framing_takes_the_same_of_syslog_wherever_it_is_divided(
    kind: type[SenderBuffer], data: bytes, cuts: list[int]
) -> None:
    assert taken(data, cuts, kind) == taken(data, [], kind)


@given(st.lists(contents.map(lambda text: text.replace(b"\0", b"0")), max_size=8))
def test_messages_that_end_with_nul_have_any_other_bytes(messages: list[bytes]) -> None:
    data = b"".join(message + b"\0" for message in messages)
    assert taken(data, [], NulBuffer) == (messages, "")
    starts = [b"<14>" + message[:36] for message in messages]
    assert taken(b"<1>\0" + b"\0".join([*starts, b""]), [], AutoBuffer) == ([b"<1>", *starts], "")


@pytest.mark.parametrize(
    ("data", "values", "error"),
    [
        (b"5 hello7 <1>a\nbc<14>c\r\n5 <1>d\n<1>e\n", "hello|<1>a\nbc|<14>c|<1>d\n|<1>e", ""),
        (b"<1>a\0<1>b\nc\0" + b"3 <1>", "<1>a|<1>b\nc|<1>", ""),
        (b"<1>a\nTraceback\0", "<1>a", "2 has b'T' where its length, as in '5 hello', or its"),
        (b"<1>a\n5 times\n", "<1>a", "2 has b'5 t' where its length"),
        (b"<1>a\n<1>b\0", "<1>a", "2 has NUL in it, and those before it ended with a line break"),
        (b"hello\n", "", "1 has b'h' where its length"),
        (b"<b>hello\n", "", "1 has b'<b>he' where its length"),
        (b"<1>a\n<1>b", "<1>a", "2 has no end, or is shorter than its length says"),
        (b"<1>" + b"x" * 50, "", "1 is longer than the 40 bytes that a message may have"),
        (b"<1>" + b"x" * 50 + b"\n", "", "1 is longer than the 40 bytes"),
        (b"41 ", "", "1 is longer than the 40 bytes"),
    ],
)
def test_auto_takes_each_message_as_it_begins(data: bytes, values: str, error: str) -> None:
    found, said = taken(data, [], AutoBuffer)
    assert found == values.encode().split(b"|") if values else found == []
    assert said.startswith(f"Message {error}") if error else said == ""


@pytest.mark.parametrize(
    ("data", "values", "error"),
    [
        (b"11 <1>hello\nab7 <1>good", [], "1 is a message of syslog that begins with its length"),
        (b"<1>a\0<1>b\0c\n", [], "1 is a message of syslog that ends with NUL, and no line"),
        (b"<1>a\n<1>b\0c\n", [b"<1>a"], "2 is a message of syslog that ends with NUL"),
        (b"5 hello\nb\0c\n", [b"5 hello", b"b\0c"], ""),
    ],
)
def test_lines_refuse_syslog_of_another_framing(
    data: bytes, values: list[bytes], error: str
) -> None:
    found, said = taken(data, [], LineBuffer)
    assert found == values
    assert said.startswith(f"Line {error}") if error else said == ""


def test_nul_names_what_it_misses() -> None:
    values, said = taken(b"a\0<1>b\n<1>c\n", [], NulBuffer)
    assert values == [b"a"]
    assert said.startswith("Message 2 has no NUL at its end, and was not stored; end every message")
    assert taken(b"x" * 41, [], NulBuffer)[1].startswith("Message 1 is longer than the 40 bytes")
