"""Messages of one sender by octet counting, as syslog senders frame them (RFC 6587, RFC 5425).

Each message comes after its length in bytes, in digits, and a space: ``5 hello``. A message may
have any bytes, ends of lines too.
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


class MessageBuffer(SenderBuffer):
    """Splits as the lengths say; one that is too long is rejected when its length has come."""

    WHAT = "Message"

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
        """Return where the first incomplete message begins, and note its missing bytes."""
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
            raise ReceiverError(
                f"{self.next_name} has {self._wrong!r} where its length or the space after that"
                " must be, as in '5 hello'; set the sender to octet counting, or receive with"
                " --framing lines."
            )
        super().check()

    def _records_of(self, whole: bytes, timestamp_ms: int) -> Records:
        return Records.of(_messages(whole), timestamp_ms=timestamp_ms)

    def _check_all(self, whole: bytes) -> None:
        check_values(_messages(whole), self._taken + 1, self.WHAT)

    def _ids_of(self, whole: bytes, field: str) -> list[str]:
        return ids_of_values(_messages(whole), field, self._taken + 1, self.WHAT)


def _places(whole: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each message, without its length."""
    at = 0
    while at < len(whole):
        space = whole.index(b" ", at)
        start = space + 1
        at = start + int(whole[at:space])
        yield start, at


def _messages(whole: bytes) -> list[bytes]:
    return [whole[start:end] for start, end in _places(whole)]
