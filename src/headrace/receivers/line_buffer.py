"""Lines of one sender over TCP: cut up at their ends."""

import re
from collections.abc import Iterator
from typing import Final

from headrace.errors import ReceiverError
from headrace.journal.records import Records
from headrace.receivers.connections import PROXY_2
from headrace.receivers.json_text import check_lines, ids_of_lines
from headrace.receivers.memory_budget import MemoryBudget
from headrace.receivers.sender_buffer import MOST_AT_ONCE, SenderBuffer
from headrace.receivers.settings import TcpSettings

_SYSLOG: Final = re.compile(b"([1-9][0-9]{0,8} )?<[0-9]{1,3}>")
_HEAD_BYTES: Final = 15
"""How long a match of that may be."""

_NO_PROXY: Final = (
    "a header of the PROXY protocol",
    "have the proxy send none, or receive with --proxy-protocol",
)
_SIGNATURES: Final = {
    b"PROXY TCP4 ": _NO_PROXY,
    b"PROXY TCP6 ": _NO_PROXY,
    b"PROXY UNKNOWN": _NO_PROXY,
    PROXY_2: _NO_PROXY,  # which comes at once
    b"\x16\x03": ("TLS", "start the receiver with --tls-certificate, or send without TLS"),
}
"""How a connection begins that has no lines: what that is, and what to do."""

_HTTP: Final = re.compile(rb"[A-Z]{3,10} [^\n]{1,8192} HTTP/[0-9.]{1,3}\r?\n")
_NO_HTTP: Final = "an HTTP request", "send it to `headrace receive http`"


class LineBuffer(SenderBuffer):
    """Splits at the ends of lines.

    A sender of syslog that counts octets, or ends messages with NUL, is refused: lines of its
    messages would be cut in the wrong places. It is known by how its first message begins, and so
    are HTTP, TLS and the header that a proxy puts before a connection.
    """

    WHAT = "Line"
    WHOLE = "send whole lines"

    def __init__(self, settings: TcpSettings, budget: MemoryBudget) -> None:
        super().__init__(settings, budget)
        self._head: bytes | None = b""
        """The first bytes of a sender; None once they are judged."""
        self._is_syslog = False
        self._other_framing: str | None = None
        self._foreign: tuple[str, str] | None = None
        self._has_line = False

    def add(self, data: bytes) -> bytes:  # noqa: D102  # as in the base class
        if self._head is not None:
            self._judge(data)
        if self._is_syslog and (nul := data.find(b"\0")) >= 0:
            self._other_framing = "nul"
            data = data[: data.rfind(b"\n", 0, nul) + 1]
        if self._other_framing == "octet-counting" or self._foreign:
            return b""
        end = data.rfind(b"\n") + 1
        whole = bytes(self._rest) + data[:end] if end else b""
        if end:
            self.close()
            if not self._has_line and _HTTP.match(whole):
                self._foreign = _NO_HTTP
                return b""
            self._has_line = True
        self._keep(data[end:])
        return whole

    def first_of(self, whole: bytes) -> tuple[bytes, bytes]:  # noqa: D102
        first, _, others = whole.partition(b"\n")
        return first.removesuffix(b"\r"), others

    def parts_of(self, whole: bytes) -> Iterator[bytes]:  # noqa: D102
        if whole.count(b"\n") <= MOST_AT_ONCE:
            yield whole
            return
        start = 0
        while start < len(whole):
            end = whole.find(b"\n", start + MOST_AT_ONCE - 1) + 1 or len(whole)
            yield whole[start:end]
            start = end

    def cut_off(self) -> ReceiverError:  # noqa: D102
        return ReceiverError(
            rf"{self.next_name} has no end, and was not stored; end every line with \n."
        )

    def _judge(self, data: bytes) -> None:
        self._head = ((self._head or b"") + data)[:_HEAD_BYTES]
        syslog, head = _SYSLOG.match(self._head), self._head
        known = [signature for signature in _SIGNATURES if head.startswith(signature)]
        is_open = any(signature.startswith(head) for signature in _SIGNATURES)
        if known:
            self._foreign = _SIGNATURES[known[0]]
        if syslog or known or len(head) == _HEAD_BYTES or (b"\n" in head and not is_open):
            self._head = None
        self._is_syslog = syslog is not None
        if syslog and syslog[1]:
            self._other_framing = "octet-counting"

    def check(self) -> None:  # noqa: D102
        if self._foreign:
            what, remedy = self._foreign
            raise ReceiverError(f"{self.next_name} begins as {what} does, and is none; {remedy}.")
        if self._other_framing:
            sign = "ends with NUL" if self._other_framing == "nul" else "begins with its length"
            raise ReceiverError(
                f"{self.next_name} is a message of syslog that {sign}, and no line; receive it with"
                f" --framing {self._other_framing} or auto, or have the sender end each message"
                " with a line break."
            )
        if len(self._rest) > self._max_bytes + 1:  # "\r" may come before its end
            raise self._too_long()
        super().check()

    def _records_of(self, whole: bytes, timestamp_ms: int) -> Records:
        return Records.of_lines(whole, timestamp_ms=timestamp_ms)

    def _check_all(self, whole: bytes) -> None:
        check_lines(whole, self._taken + 1)

    def _ids_of(self, whole: bytes, field: str) -> list[str]:
        return ids_of_lines(whole, field, self._taken + 1)
