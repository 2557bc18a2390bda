"""Messages of one sender over TCP, as syslog senders frame them (RFC 6587, RFC 5425).

By octet counting each message comes after its length in bytes, in digits, and a space:
``5 hello``. It may have any bytes, ends of lines too. Other senders end each message with NUL or a
line break; what they send is counted here, and goes on as counted messages do.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from headrace.errors import ReceiverError
from headrace.journal.records import Records
from headrace.receivers.json_text import check_values, ids_of_values
from headrace.receivers.memory_budget import MemoryBudget
from headrace.receivers.sender_buffer import MOST_AT_ONCE, SenderBuffer
from headrace.receivers.settings import TcpSettings

_DIGITS: Final = re.compile(b"[0-9]*")
_NUL: Final = b"\0"
_ENDS: Final = re.compile(b"[\n\0]")
PRIORITY: Final = re.compile(b"<[0-9]{1,3}>")
"""How each message of syslog begins (RFC 5424)."""
_PART_OF_PRIORITY: Final = re.compile(b"<[0-9]{0,3}")
_PRIORITY_BYTES: Final = 5


class MessageBuffer(SenderBuffer):
    """Splits as the lengths say; one that is too long is rejected when its length has come."""

    WHAT = "Message"
    WHOLE = "send whole messages"

    def __init__(self, settings: TcpSettings, budget: MemoryBudget) -> None:
        super().__init__(settings, budget)
        self._most_digits = len(str(self._max_bytes))
        self._missing = 0
        self._is_too_long = False
        self._wrong: bytes | None = None

    def add(self, data: bytes) -> bytes:  # noqa: D102  # as in the base class
        if len(data) < self._missing:
            self._missing -= len(data)
            self._keep(data)
            return b""
        data = bytes(self._rest) + data
        self.close()
        end = self._end_of_whole(data)
        if not self._is_too_long and self._wrong is None:
            self._keep(data[end:])
        return data[:end]

    def _end_of_whole(self, data: bytes) -> int:
        self._missing = at = 0
        while at < len(data):
            space = data.find(b" ", at, at + self._most_digits + 1)
            digits = data[at:space] if space > at else b""
            if not digits.isdigit() or digits.startswith(b"0"):
                self._judge(data[at : at + self._most_digits + 1])
                break
            if (size := int(digits)) > self._max_bytes:
                self._is_too_long = True
                break
            end = space + 1 + size
            if end > len(data):
                self._missing = end - len(data)
                break
            at = end
        return at

    def _judge(self, head: bytes) -> None:
        """Judge a message by its first bytes, which are not yet a length and a space.

        The verdict is open as long as more digits of an allowed length may come.
        """
        digits = _DIGITS.match(head)
        count = digits.end() if digits else 0
        if head.startswith(b"0"):
            self._wrong = b"0"
        elif count > self._most_digits:
            self._is_too_long = True
        elif count < len(head):
            self._wrong = head[count : count + 1]

    def first_of(self, whole: bytes) -> tuple[bytes, bytes]:  # noqa: D102
        start, end = next(_places(whole))
        return whole[start:end], whole[end:]

    def parts_of(self, whole: bytes) -> Iterator[bytes]:  # noqa: D102
        if whole.count(b" ") <= MOST_AT_ONCE:  # each message has one before it
            yield whole
            return
        begin, ends = 0, (end for _, end in _places(whole))
        while some := list(islice(ends, MOST_AT_ONCE)):
            yield whole[begin : some[-1]]
            begin = some[-1]

    def cut_off(self) -> ReceiverError:  # noqa: D102
        return ReceiverError(
            f"{self.next_name} is shorter than its length says, and was not stored; send all of it."
        )

    def check(self) -> None:  # noqa: D102
        if self._is_too_long:
            raise self._too_long()
        if self._wrong is not None:
            raise ReceiverError(f"{self.next_name} {self._refusal(self._wrong)}")
        super().check()

    def _refusal(self, wrong: bytes) -> str:
        return (
            f"has {wrong!r} where its length or the space after that must be, as in '5 hello'; set"
            " the sender to octet counting, or receive with --framing lines, nul or auto."
        )

    def _records_of(self, whole: bytes, timestamp_ms: int) -> Records:
        return Records.of(_messages(whole), timestamp_ms=timestamp_ms)

    def _check_all(self, whole: bytes) -> None:
        check_values(_messages(whole), self._taken + 1, self.WHAT)

    def _ids_of(self, whole: bytes, field: str) -> list[str]:
        return ids_of_values(_messages(whole), field, self._taken + 1, self.WHAT)


class NulBuffer(MessageBuffer):
    """Splits at NUL alone, as Python's ``SysLogHandler`` ends each message."""

    WHOLE = "end every message with NUL"

    def add(self, data: bytes) -> bytes:  # noqa: D102  # as in the base class
        end = data.rfind(_NUL) + 1
        messages = (bytes(self._rest) + data[: end - 1]).split(_NUL) if end else []
        if end:
            self.close()
        self._keep(data[end:])
        return _counted(messages)

    def cut_off(self) -> ReceiverError:  # noqa: D102
        return ReceiverError(
            f"{self.next_name} has no NUL at its end, and was not stored; end every message with"
            " NUL, or receive with --framing lines, octet-counting or auto."
        )

    def check(self) -> None:  # noqa: D102
        if len(self._rest) > self._max_bytes:
            raise self._too_long()
        super().check()


class AutoBuffer(MessageBuffer):
    """Splits each message as it begins: with its length, or with ``<14>`` and an end.

    The first end of a connection, NUL or a line break, is that of all its messages: after NUL a
    message may have line breaks, and after a line break no NUL. Once a message had an end, those
    with a length must begin with ``<14>`` too: otherwise a text of several lines, of which one
    begins with a number, would be taken for one.
    """

    def __init__(self, settings: TcpSettings, budget: MemoryBudget) -> None:
        super().__init__(settings, budget)
        self._end: bytes | None = None
        self._has_begun = False
        """Whether what is unfinished is a message with an end, which has not come."""

    def add(self, data: bytes) -> bytes:  # noqa: D102
        if self._has_begun and self._find_end(data, 0) < 0:
            self._keep(data)
            return b""
        if len(data) < self._missing:
            return super().add(data)
        data = bytes(self._rest) + data
        self.close()
        self._missing = at = 0
        self._has_begun = False
        messages: list[bytes] = []
        while at < len(data):
            message, end = self._next(data, at)
            if message is None:
                break
            messages.append(message)
            at = end
        if not self._is_too_long and self._wrong is None:
            self._keep(data[at:])
        return _counted(messages)

    def _next(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """Return the message that begins there, and where the next does; None if it is not whole.

        Notes what is missing of it, or what is wrong with it.
        """
        if data[at] != ord("<"):
            return self._next_counted(data, at)
        if not PRIORITY.match(data, at):
            head = data[at : at + _PRIORITY_BYTES]
            if not _PART_OF_PRIORITY.fullmatch(head):
                self._wrong = head
            return None, at
        end = self._find_end(data, at)
        if end < 0:
            self._has_begun = True
            return None, at
        found = data[end : end + 1]
        if self._end is None:
            self._end = found
        elif found != self._end:
            self._wrong = found
            return None, at
        message = data[at:end]
        return (message if found == _NUL else message.removesuffix(b"\r")), end + 1

    def _next_counted(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        space = data.find(b" ", at, at + self._most_digits + 1)
        digits = data[at:space] if space > at else b""
        if not digits.isdigit() or digits.startswith(b"0"):
            self._judge(data[at : at + self._most_digits + 1])
        elif (size := int(digits)) > self._max_bytes:
            self._is_too_long = True
        elif self._end is not None and data[space + 1 : space + 2] not in (b"", b"<"):
            self._wrong = data[at : space + 2]
        elif (end := space + 1 + size) <= len(data):
            return data[space + 1 : end], end
        elif len(data) > space + 1:  # its first byte is judged
            self._missing = end - len(data)
        return None, at

    def _find_end(self, data: bytes, at: int) -> int:
        if self._end == _NUL:
            return data.find(_NUL, at)
        end = _ENDS.search(data, at)
        return end.start() if end else -1

    def cut_off(self) -> ReceiverError:  # noqa: D102
        return ReceiverError(
            f"{self.next_name} has no end, or is shorter than its length says, and was not stored;"
            " send all of it."
        )

    def check(self) -> None:  # noqa: D102
        if self._has_begun and len(self._rest) > self._max_bytes + 1:  # "\r" may come at its end
            raise self._too_long()
        super().check()

    def _refusal(self, wrong: bytes) -> str:
        if wrong in (b"\n", _NUL):
            return (
                "has NUL in it, and those before it ended with a line break; end all messages of a"
                " connection alike, or give each its length, as in '5 hello'."
            )
        return (
            f"has {wrong!r} where its length, as in '5 hello', or its priority, as in '<14>', must"
            " be; frame it in one of the ways of RFC 6587, and receive messages that have line"
            " breaks and end with NUL with --framing nul."
        )


def _counted(messages: list[bytes]) -> bytes:
    return b"".join([b"%d %b" % (len(message), message) for message in messages])


def _places(whole: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(whole):
        space = whole.index(b" ", at)
        start = space + 1
        at = start + int(whole[at:space])
        yield start, at


def _messages(whole: bytes) -> list[bytes]:
    return [whole[start:end] for start, end in _places(whole)]
