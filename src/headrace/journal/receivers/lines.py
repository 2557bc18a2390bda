"""Splitting of a TCP sender's bytes into lines, and conversion of the lines to records."""

import re
from collections.abc import Iterator
from typing import Final

import pyarrow.compute as pc

from headrace.errors import ReceiverError
from headrace.journal.receivers.connections import PROXY_2
from headrace.journal.receivers.json_text import MalformedError, check_lines, ids_of_lines
from headrace.journal.receivers.memory_budget import MemoryBudget
from headrace.journal.receivers.settings import TcpSettings
from headrace.journal.records import Records

_MOST_AT_ONCE: Final = 16_384
"""Maximum number of lines that are converted to records at once. The limit is necessary because the
record of an empty line takes 24 times the memory of the line."""

_SYSLOG: Final = re.compile(b"([1-9][0-9]{0,8} )?<[0-9]{1,3}>")
_HEAD_BYTES: Final = 15
"""Number of bytes at the start of a connection that show whether its sender uses syslog."""

_NO_PROXY: Final = (
    "a header of the PROXY protocol",
    "have the proxy send none, or receive with --proxy-protocol",
)
_SIGNATURES: Final = {
    b"PROXY TCP4 ": _NO_PROXY,
    b"PROXY TCP6 ": _NO_PROXY,
    b"PROXY UNKNOWN": _NO_PROXY,
    PROXY_2: _NO_PROXY,  # always arrives within one read
    b"\x16\x03": ("TLS", "start the receiver with --tls-certificate, or send without TLS"),
}
"""First bytes of connections with other protocols. The values are the name of the protocol and the
remedy, for the error message."""

_HTTP: Final = re.compile(rb"[A-Z]{3,10} [^\n]{1,8192} HTTP/[0-9.]{1,3}\r?\n")
_NO_HTTP: Final = "an HTTP request", "send it to `headrace receive http`"


class SenderLines:
    """Splitter that divides a sender's bytes into complete lines, and keeps the unfinished line.

    The result does not depend on how the bytes are divided among calls of `add`. The unfinished
    lines of all senders share one memory limit.

    Syslog messages that begin with their length or end with NUL are refused, because they would be
    split in the wrong places. HTTP, TLS and PROXY headers are recognized by their first bytes and
    refused too.
    """

    def __init__(self, settings: TcpSettings, budget: MemoryBudget) -> None:
        self._max_bytes = settings.max_line_bytes
        self._check_json = settings.check_json
        self._id_field = settings.id_field
        self._budget = budget
        self._rest = bytearray()
        self._taken = 0
        self._has_memory = True
        self._head: bytes | None = b""
        """First bytes of the connection, at most 15; None once the sender's protocol is known."""
        self._is_syslog = False
        self._counts_octets = False
        self._ends_with_nul = False
        self._foreign: tuple[str, str] | None = None
        self._has_line = False

    @property
    def next_name(self) -> str:
        """Name of the next or unfinished line for error messages, such as ``Line 1``."""
        return f"Line {self._taken + 1}"

    @property
    def is_unfinished(self) -> bool:
        """Whether the bytes so far end within a line."""
        return bool(self._rest)

    def add(self, data: bytes) -> bytes:
        """Add bytes of the sender; return the lines that are now complete, with their line ends.

        Process these lines, then call `check`.
        """
        if self._head is not None:
            self._judge(data)
        if self._is_syslog and (nul := data.find(b"\0")) >= 0:
            self._ends_with_nul = True
            data = data[: data.rfind(b"\n", 0, nul) + 1]
        if self._counts_octets or self._foreign:
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

    def first_of(self, whole: bytes) -> tuple[bytes, bytes]:
        """Split complete lines into the first line, without its end, and the remaining bytes."""
        first, _, following = whole.partition(b"\n")
        return first.removesuffix(b"\r"), following

    def parts_of(self, whole: bytes) -> Iterator[bytes]:
        """Split complete lines into chunks of at most 16384 lines, and yield the chunks."""
        if whole.count(b"\n") <= _MOST_AT_ONCE:
            yield whole
            return
        start = 0
        while start < len(whole):
            end = whole.find(b"\n", start + _MOST_AT_ONCE - 1) + 1 or len(whole)
            yield whole[start:end]
            start = end

    def cut_off(self) -> ReceiverError:
        """Return the error for a sender that closed its connection before the end of a line."""
        return ReceiverError(
            rf"{self.next_name} has no end, and was not stored; end every line with \n."
        )

    def records(self, whole: bytes, timestamp_ms: int) -> tuple[Records, ReceiverError | None]:
        """Convert complete lines to records, up to the first rejected line.

        A line is rejected if it is too long, is not JSON, or lacks a required message id. Return
        the records and the error of the rejected line, or None.
        """
        records, error = Records.of_lines(whole, timestamp_ms=timestamp_ms), None
        if len(whole) > self._max_bytes:
            sizes = pc.binary_length(records.batch.column("value"))
            place = pc.index(pc.greater(sizes, self._max_bytes), True).as_py()
            if place >= 0:
                records, error = records.slice(0, place), self._too_long(place)
        if self._check_json or self._id_field is not None:
            records, error = self._checked(whole, records, error)
        self._taken += records.count
        return records, error

    def check(self) -> None:
        """Check the unfinished line and the sender's protocol.

        Raises:
            ReceiverError: The sender uses another protocol, the line is too long, or there is no
                memory for the line.
        """
        if self._foreign:
            kind, remedy = self._foreign
            raise ReceiverError(f"{self.next_name} begins like {kind}, not like a line; {remedy}.")
        if self._counts_octets or self._ends_with_nul:
            sign = "begins with its length" if self._counts_octets else "ends with NUL"
            raise ReceiverError(
                f"{self.next_name} is a syslog message that {sign}, not a line; configure the"
                " sender to end each message with a line break."
            )
        if len(self._rest) > self._max_bytes + 1:  # plus "\r", which is no content
            raise self._too_long()
        if not self._has_memory:
            raise ReceiverError(
                "The unfinished lines of all senders need more than their limit of"
                f" {self._budget.max_bytes} bytes, a sixteenth of max_memory_bytes; send"
                f" {self.next_name.lower()} again later."
            )

    def close(self) -> None:
        """Drop the unfinished line and release its memory."""
        self._budget.release(len(self._rest))
        self._rest = bytearray()

    def _judge(self, data: bytes) -> None:
        self._head = ((self._head or b"") + data)[:_HEAD_BYTES]
        syslog, head = _SYSLOG.match(self._head), self._head
        signatures = [signature for signature in _SIGNATURES if head.startswith(signature)]
        is_open = any(signature.startswith(head) for signature in _SIGNATURES)
        if signatures:
            self._foreign = _SIGNATURES[signatures[0]]
        if syslog or signatures or len(head) == _HEAD_BYTES or (b"\n" in head and not is_open):
            self._head = None
        self._is_syslog = syslog is not None
        self._counts_octets = syslog is not None and syslog[1] is not None

    def _checked(
        self, whole: bytes, records: Records, error: ReceiverError | None
    ) -> tuple[Records, ReceiverError | None]:
        """Check JSON and ids of lines, and drop the records from the first malformed line on.

        Return the remaining records, with ids if ``id_field`` is set, and the error of the first
        rejected line, or None.
        """
        ids: list[str] = []
        try:
            if self._id_field is None:
                check_lines(whole, self._taken + 1)
            else:
                ids = ids_of_lines(whole, self._id_field, self._taken + 1)
        except MalformedError as malformed:
            ids = malformed.ids
            if malformed.place < records.count or error is None:
                records = records.slice(0, malformed.place)
                error = ReceiverError(f"{malformed} Send every line as JSON.")
        if self._id_field is not None:
            records = records.with_ids(ids[: records.count])
        return records, error

    def _keep(self, rest: bytes) -> None:
        """Append bytes to the unfinished line, or note that there is no memory for them."""
        self._has_memory = self._budget.try_acquire(len(rest))
        if self._has_memory:
            self._rest += rest

    def _too_long(self, place: int = 0) -> ReceiverError:
        return ReceiverError(
            f"Line {self._taken + 1 + place} is longer than the {self._max_bytes} bytes that a line"
            " may have; send it in parts, or raise max_line_bytes."
        )
