"""Whole lines out of what comes in pieces."""

import pyarrow.compute as pc

from headrace.errors import ReceiverError
from headrace.journal.records import Records
from headrace.receivers.json_text import MalformedError, check_lines
from headrace.receivers.room import Room
from headrace.receivers.settings import TcpSettings


class Lines:
    """Cuts what one sender sends into whole lines, and keeps the last one until it is whole.

    Args:
        settings: Say how long a line may be, and whether it must be JSON.
        room: What the unfinished lines of all senders may take together.
    """

    def __init__(self, settings: TcpSettings, room: Room) -> None:
        self._longest_bytes = settings.max_line_bytes
        self._check_json = settings.check_json
        self._room = room
        self._rest = bytearray()
        self._taken = 0
        self._has_room = True

    @property
    def next_number(self) -> int:
        """The number of the line that comes next or is unfinished; the first is line 1."""
        return self._taken + 1

    @property
    def unfinished(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._rest)

    def add(self, data: bytes) -> bytes:
        """Answer the whole lines that there are with these bytes, maybe none; see `check` too."""
        end = data.rfind(b"\n") + 1
        whole = bytes(self._rest) + data[:end] if end else b""
        if end:
            self.close()
        self._keep(data[end:])
        return whole

    def records(self, whole: bytes, timestamp_ms: int) -> tuple[Records, ReceiverError | None]:
        """Make records of whole lines, up to the first one that is refused.

        Returns:
            The records, and what is wrong with the line that comes after them, if anything is.
        """
        records, error = Records.of_lines(whole, timestamp_ms=timestamp_ms), None
        if len(whole) > self._longest_bytes:
            sizes = pc.binary_length(records.batch.column("value"))
            place = pc.index(pc.greater(sizes, self._longest_bytes), True).as_py()
            if place >= 0:
                records, error = records.slice(0, place), self._too_long(self._taken + place + 1)
        if self._check_json:
            try:
                check_lines(whole, self.next_number)
            except MalformedError as malformed:
                if malformed.place < records.count or error is None:
                    records = records.slice(0, malformed.place)
                    error = ReceiverError(f"{malformed} Send every line as JSON.")
        self._taken += records.count
        return records, error

    def check(self) -> None:
        """Refuse the unfinished line as soon as it is too long, or there is no room for it.

        Raises:
            ReceiverError: It is, or there is none.
        """
        if len(self._rest) > self._longest_bytes + 1:  # "\r" may come before its end
            raise self._too_long(self.next_number)
        if not self._has_room:
            raise ReceiverError(
                "The unfinished lines of all senders have no more than the"
                f" {self._room.most_bytes} bytes of unfinished_bytes; send line"
                f" {self.next_number} again later."
            )

    def close(self) -> None:
        """Keep nothing any more."""
        self._room.give_back(len(self._rest))
        self._rest = bytearray()

    def _keep(self, data: bytes) -> None:
        self._has_room = self._room.try_take(len(data))
        if self._has_room:
            self._rest += data

    def _too_long(self, number: int) -> ReceiverError:
        return ReceiverError(
            f"Line {number} is longer than the {self._longest_bytes} bytes that a line may have;"
            " send it in parts, or raise max_line_bytes."
        )
