"""Buffer of one sender over TCP, up to its records: cut up, checked, with their ids."""

import abc
from collections.abc import Iterator
from typing import Final

import pyarrow.compute as pc

from headrace.errors import ReceiverError
from headrace.journal.records import Records
from headrace.receivers.json_text import MalformedError
from headrace.receivers.memory_budget import MemoryBudget
from headrace.receivers.settings import TcpSettings

MOST_AT_ONCE: Final = 16_384
"""Lines or messages that are made records at once: empty ones take 24 times their bytes then."""


class SenderBuffer(abc.ABC):
    """Splits what one sender sends into whole lines or messages, and keeps the unfinished last one.

    However the bytes are divided among calls of `add`, the same records come out, and the same one
    is the first to be rejected. Memory comes from the budget for what all senders have unfinished.
    """

    WHAT: str
    """Name of a record, in errors."""
    WHOLE: str
    """What a sender must do whose record is not complete in time."""

    def __init__(self, settings: TcpSettings, budget: MemoryBudget) -> None:
        self._max_bytes = settings.max_line_bytes
        self._check_json = settings.check_json
        self._id_field = settings.id_field
        self._budget = budget
        self._rest = bytearray()
        self._taken = 0
        self._has_memory = True

    @property
    def next_name(self) -> str:
        """Name of the next or unfinished record, with its number; the first one's is 1."""
        return f"{self.WHAT} {self._taken + 1}"

    @property
    def is_unfinished(self) -> bool:
        """Whether a line or message has begun and not ended."""
        return bool(self._rest)

    @abc.abstractmethod
    def add(self, data: bytes) -> bytes:
        """Return the records that these bytes complete; call `check` when they are processed."""

    @abc.abstractmethod
    def first_of(self, whole: bytes) -> tuple[bytes, bytes]:
        """The first line or message without its framing, and the others as they were sent."""

    @abc.abstractmethod
    def parts_of(self, whole: bytes) -> Iterator[bytes]:
        """Yield complete records, in as many parts as keep a part's records small."""

    @abc.abstractmethod
    def cut_off(self) -> ReceiverError:
        """Return the error if the sender ends here, within a line or message."""

    def records(self, whole: bytes, timestamp_ms: int) -> tuple[Records, ReceiverError | None]:
        """Make records of what is whole, up to the first one that is rejected.

        Returns the records, and what is wrong with the one that comes after them, if anything is.
        """
        records, error = self._records_of(whole, timestamp_ms), None
        if len(whole) > self._max_bytes:
            sizes = pc.binary_length(records.batch.column("value"))
            place = pc.index(pc.greater(sizes, self._max_bytes), True).as_py()
            if place >= 0:
                records, error = records.slice(0, place), self._too_long(place)
        if self._check_json or self._id_field is not None:
            records, error = self._checked(whole, records, error)
        self._taken += records.count
        return records, error

    @abc.abstractmethod
    def _records_of(self, whole: bytes, timestamp_ms: int) -> Records:
        """A record for each line or message."""

    @abc.abstractmethod
    def _check_all(self, whole: bytes) -> None:
        """Raise MalformedError where one of them is not JSON."""

    @abc.abstractmethod
    def _ids_of(self, whole: bytes, field: str) -> list[str]:
        """The message id in that field of each; MalformedError where one has none."""

    def _checked(
        self, whole: bytes, records: Records, error: ReceiverError | None
    ) -> tuple[Records, ReceiverError | None]:
        """The records up to the first that is not JSON or has no id, with their ids."""
        ids: list[str] = []
        try:
            if self._id_field is None:
                self._check_all(whole)
            else:
                ids = self._ids_of(whole, self._id_field)
        except MalformedError as malformed:
            ids = malformed.ids
            if malformed.place < records.count or error is None:
                records = records.slice(0, malformed.place)
                error = ReceiverError(f"{malformed} Send every {self.WHAT.lower()} as JSON.")
        if self._id_field is not None:
            records = records.with_ids(ids[: records.count])
        return records, error

    def check(self) -> None:
        """Raise ReceiverError if what is unfinished is rejected, or there is no memory for it."""
        if not self._has_memory:
            raise ReceiverError(
                f"The unfinished {self.WHAT.lower()}s of all senders have no more than the"
                f" {self._budget.max_bytes} bytes that they may, a sixteenth of max_memory_bytes;"
                f" send {self.next_name.lower()} again later."
            )

    def close(self) -> None:
        """Drop what is unfinished."""
        self._budget.release(len(self._rest))
        self._rest = bytearray()

    def _keep(self, rest: bytes) -> None:
        """Add to what is unfinished, if there is memory."""
        self._has_memory = self._budget.try_acquire(len(rest))
        if self._has_memory:
            self._rest += rest

    def _too_long(self, place: int = 0) -> ReceiverError:
        return ReceiverError(
            f"{self.WHAT} {self._taken + 1 + place} is longer than the {self._max_bytes} bytes that"
            f" a {self.WHAT.lower()} may have; send it in parts, or raise max_line_bytes."
        )
