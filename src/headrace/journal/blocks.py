"""One lane's files, read and checked: what the writer, readers, `verify` and `repair` share."""

import json
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.control.ranges import OffsetRange
from headrace.errors import CorruptionError
from headrace.journal.block import HEADER_BYTES, BlockHeader, decode_header, decode_payload
from headrace.journal.index import LaneIndex
from headrace.journal.names import BLOCK, END, LOST, file_name
from headrace.journal.records import SCHEMA, Records
from headrace.journal.storage import Storage

_MOST_LOST_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Identity:
    """A journal's name, and its id of 16 bytes: a later journal of the same name has another."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """The word that the records of some offsets cannot be read any more, and why."""

    first: int
    until: int
    reason: str

    def encode(self) -> bytes:
        """As it is stored."""
        values = {"first": self.first, "until": self.until, "reason": self.reason}
        return json.dumps(values).encode()


class LaneFiles:
    """The files of one lane.

    Every method may raise ``OSError``.
    """

    def __init__(self, storage: Storage, identity: Identity, lane: int) -> None:
        self.storage = storage
        self.identity = identity
        self.lane = lane
        self.folder = str(lane)

    @property
    def what(self) -> str:
        """The lane as an error names it."""
        return f"lane {self.lane} of the journal {self.storage.url}"

    def index(self) -> LaneIndex:
        """What the names say; listed means durable."""
        return LaneIndex.of(self.storage.names(self.folder))

    def path(self, first: int, kind: str = BLOCK) -> str:
        """Of the file that begins at an offset."""
        return f"{self.folder}/{file_name(first, kind)}"

    def shown(self, path: str) -> str:
        """A path as an error names it."""
        return f"{self.storage.url}/{path}"

    def offsets(self, start: int, until: int) -> OffsetRange:
        """Some of the lane's offsets."""
        return OffsetRange(self.identity.name, self.lane, start, until)

    def end(self, index: LaneIndex) -> int:
        """The offset after the last: where the lane goes on.

        Raises:
            CorruptionError: The last file cannot be believed, or the lane has reached further.
        """
        end = self.last_end(index)
        if (missing := self.missing_end(index, end)) is not None:
            raise CorruptionError(missing)
        return end

    def missing_end(self, index: LaneIndex, end: int) -> str | None:
        """Why the files that end there cannot be all; None if they can.

        A block that only the mark has left is not missing: whoever writes the lane next, or
        ``repair``, gives it its name back.
        """
        mark = index.mark
        if mark <= end or self.last_end(self.index()) >= mark:  # the first listing was a race
            return None
        spare = self.spare(mark)
        if spare is not None and spare.first == end:
            return None
        return (
            f"{self.what[0].upper()}{self.what[1:]} ends at offset {end}, although it had reached"
            f" {mark}: its last files are gone; put them back, or let `headrace journal repair`"
            " declare those offsets lost."
        )

    def spare(self, mark: int) -> BlockHeader | None:
        """The header of the block that a mark has as its second name, if it is whole."""
        path = self.path(mark, END)
        try:
            data = self.storage.read(path)
            start = data.slice(0, min(HEADER_BYTES, data.size)).to_pybytes()
            header = decode_header(start, data.size, path)
            decode_payload(header, data.slice(HEADER_BYTES), path, [])
        except (FileNotFoundError, CorruptionError):
            return None
        says = (header.journal_id, header.lane, header.until)
        return header if says == (self.identity.id, self.lane, mark) else None

    def last_end(self, index: LaneIndex) -> int:
        """The offset after the last file's last, whatever the lane has reached.

        Raises:
            CorruptionError: The last file cannot be believed.
        """
        if index.last is None:
            return index.start
        if index.last in index.lost:
            return self.lost(index.last).until
        return self.header(index.last).until

    def header(self, first: int) -> BlockHeader:
        """A block's header, held against its name.

        Raises:
            FileNotFoundError: There is no such block.
            CorruptionError: It is not the header of the block that belongs there.
        """
        path = self.path(first)
        start, size = self.storage.read_start(path, HEADER_BYTES)
        return self._placed(first, decode_header(start, size, self._place(path, first)))

    def claimed_end(self, first: int) -> int | None:
        """Where a damaged block says that it ends; None if its header is damaged as well.

        Raises:
            FileNotFoundError: There is no such block.
        """
        path = self.path(first)
        start, _ = self.storage.read_start(path, HEADER_BYTES)
        try:
            return self._placed(first, decode_header(start, None, path)).until
        except CorruptionError:
            return None

    def block(self, first: int, columns: list[str]) -> tuple[BlockHeader, pa.RecordBatch]:
        """A block, checked whole, with some of the columns of ``records.SCHEMA``.

        Raises:
            FileNotFoundError: There is no such block.
            CorruptionError: It is not what was written.
        """
        path = self.path(first)
        data = self.storage.read(path)
        place = self._place(path, first)
        start = data.slice(0, min(HEADER_BYTES, data.size)).to_pybytes()
        header = self._placed(first, decode_header(start, data.size, place))
        return header, decode_payload(header, data.slice(HEADER_BYTES), place, columns)

    def records(self, first: int) -> tuple[BlockHeader, Records]:
        """A block's records, with all columns.

        Raises:
            FileNotFoundError: There is no such block.
            CorruptionError: It is not what was written.
        """
        header, batch = self.block(first, SCHEMA.names)
        return header, Records(batch)

    def lost(self, first: int) -> Lost:
        """What was written down of lost offsets.

        Raises:
            FileNotFoundError: Nothing was.
            CorruptionError: It cannot be understood.
        """
        path = self.path(first, LOST)
        text, _ = self.storage.read_start(path, _MOST_LOST_BYTES)
        try:
            lost = _lost_of(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(
                f"{self._place(path, first)} is damaged: it does not say which offsets are lost; "
                "write it anew, as JSON with first, until and reason."
            ) from error
        if lost.first != first or lost.until <= first:
            raise CorruptionError(
                f"{self._place(path, first)} is damaged: it speaks of the offsets [{lost.first}, "
                f"{lost.until}); write it anew, as JSON with first, until and reason."
            )
        return lost

    def _place(self, path: str, first: int) -> str:
        return f"{self.shown(path)} (offset {first} of lane {self.lane})"

    def _placed(self, first: int, header: BlockHeader) -> BlockHeader:
        """The header, if it is that of the block that belongs there."""
        says = (header.journal_id, header.lane, header.first)
        if says != (self.identity.id, self.lane, first) or header.count == 0:
            of_another = header.journal_id != self.identity.id
            raise CorruptionError(
                f"{self._place(self.path(first), first)} is not the block of its name: it holds "
                f"lane {header.lane} [{header.first}, {header.until})"
                f"{' of another journal' if of_another else ''}; put back the file that was there, "
                "or let `headrace journal repair` set this one aside."
            )
        return header


def _lost_of(values: Any) -> Lost:
    lost = Lost(values["first"], values["until"], values["reason"])
    if (type(lost.first), type(lost.until), type(lost.reason)) != (int, int, str):
        raise TypeError
    return lost
