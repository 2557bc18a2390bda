r"""Lines of one sender, each ended by ``\n`` or ``\r\n``."""

from collections.abc import Iterator

from headrace.errors import ReceiverError
from headrace.journal.records import Records
from headrace.receivers.json_text import check_lines, ids_of_lines
from headrace.receivers.sender_buffer import MOST_AT_ONCE, SenderBuffer


class LineBuffer(SenderBuffer):
    """Splits at the ends of lines."""

    WHAT = "Line"

    def add(self, data: bytes) -> bytes:  # noqa: D102  # as in the base class
        end = data.rfind(b"\n") + 1
        whole = bytes(self._rest) + data[:end] if end else b""
        if end:
            self.close()
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

    def check(self) -> None:  # noqa: D102
        if len(self._rest) > self._max_bytes + 1:  # "\r" may come before its end
            raise self._too_long()
        super().check()

    def _records_of(self, whole: bytes, timestamp_ms: int) -> Records:
        return Records.of_lines(whole, timestamp_ms=timestamp_ms)

    def _check_all(self, whole: bytes) -> None:
        check_lines(whole, self._taken + 1)

    def _ids_of(self, whole: bytes, field: str) -> list[str]:
        return ids_of_lines(whole, field, self._taken + 1)
