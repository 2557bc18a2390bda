"""One lane's files, read and checked: common code of the writer, readers, `verify` and `repair`."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError
from headrace.journal.block import (
    HEADER_BYTES,
    BlockHeader,
    decode,
    decode_ends,
    decode_header,
)
from headrace.journal.names import (
    BLOCK,
    END,
    LOST,
    PACKS,
    START,
    block_firsts,
    corrupt_name,
    file_name,
    pack_name,
    packed,
    parsed,
)
from headrace.journal.storage import Storage
from headrace.journal.storage.local import LocalStorage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LaneIndex:
    """A lane's files by their first offsets.

    Attributes:
        start: Start of the lane; offsets below were pruned, even if files of them still exist.
        firsts: The first offset of each file, ascending; of a pack that was made while the lane was
            pruned it may be below the start. Each file ends where the next begins; the last one
            itself says where it ends.
        packs: Where each of those that are packs ends, by its first offset, ascending.
        left: The first offsets of blocks that are in a pack, and not removed yet; in no order.
        lost: The first offsets of those whose records are lost. An interrupted repair leaves both a
            block and the declaration that it is lost: then the declaration counts.
        marks: The offsets that the lane is known to have reached, ascending.
    """

    start: int
    firsts: npt.NDArray[np.int64]
    packs: Mapping[int, int]
    left: npt.NDArray[np.int64]
    lost: frozenset[int]
    marks: tuple[int, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Parse these names; foreign ones are ignored."""
        found: dict[str, set[int]] = {LOST: set(), START: {0}, END: set()}
        packs: dict[int, int] = {}
        blocks, others = block_firsts(names)
        for name in sorted(others):
            if (pack := packed(name)) is not None:
                packs[pack[0]] = pack[1]
            elif (known := parsed(name)) is not None:
                found[known[1]].add(known[0])
        start = max(found[START])
        packs = {first: until for first, until in packs.items() if until > start}
        left = _within(blocks, packs)
        others_than_blocks = np.array([*found[LOST], *packs], np.int64)
        firsts = np.union1d(blocks[~left], others_than_blocks)
        begin = max((first for first in packs if first <= start), default=start)
        lost = frozenset(first for first in found[LOST] if first >= start)
        marks = tuple(sorted(found[END]))
        kept = firsts[(firsts >= start) | (firsts == begin)]
        return cls(start, kept, packs, blocks[left], lost, marks)

    def left_within(self, first: int, until: int) -> list[int]:
        """The first offsets, ascending, of blocks that are in the pack of these offsets as well."""
        within: list[int] = np.sort(self.left[(self.left >= first) & (self.left < until)]).tolist()
        return within

    @property
    def last(self) -> int | None:
        """The first offset of the last file; None where there is none."""
        return int(self.firsts[-1]) if len(self.firsts) else None

    @property
    def mark(self) -> int:
        """The highest offset that the lane is known to have reached."""
        return max(self.start, *self.marks, 0)

    def holding(self, offset: int) -> int | None:
        """The first offset of the file that holds an offset; the last file may end before it."""
        place = int(np.searchsorted(self.firsts, offset, side="right")) - 1
        return int(self.firsts[place]) if place >= 0 else None

    def file_at(self, first: int) -> str:
        """The name of the file that begins at an offset."""
        if first in self.packs and first not in self.lost:
            return pack_name(first, self.packs[first])
        return file_name(first, LOST if first in self.lost else BLOCK)


def _within(blocks: npt.NDArray[np.int64], packs: Mapping[int, int]) -> npt.NDArray[np.bool_]:
    """Which of the blocks with these first offsets are in a pack; packs are ascending."""
    if not packs:
        return np.zeros(len(blocks), np.bool_)
    firsts, untils = np.array([*packs], np.int64), np.array([*packs.values()], np.int64)
    place = np.searchsorted(firsts, blocks, side="right") - 1
    within: npt.NDArray[np.bool_] = (place >= 0) & (blocks < untils[place])
    return within


_MOST_LOST_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Identity:
    """A journal's name, and its id of 16 bytes: a later journal of the same name has another."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """The declaration that the records of some offsets cannot be read any more, and why."""

    first: int
    until: int
    reason: str

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """Parse a stored loss; raises ValueError, KeyError or TypeError if it is none."""
        values = json.loads(text)
        lost = cls(values["first"], values["until"], values["reason"])
        if (type(lost.first), type(lost.until), type(lost.reason)) != (int, int, str):
            raise TypeError
        return lost


class LaneEnd(NamedTuple):
    """End of a lane.

    Attributes:
        until: The offset after the last that can be read.
        checksum: Checksum of the block that ends there; 0 if none does.
        spare_until: End of the block whose only name is the lane's mark; 0 if there is none.
    """

    until: int
    checksum: int = 0
    spare_until: int = 0

    @property
    def reached(self) -> int:
        """End of the lane's written offsets, whether they can be read or not."""
        return max(self.until, self.spare_until)

    @property
    def has_spare(self) -> bool:
        """Whether the mark is the only name of the last block."""
        return self.spare_until > self.until


class LaneFiles:
    """The files of one lane.

    Every method may raise ``OSError``, and ``CorruptionError`` if a file does not belong there;
    `end` and `look` also if the lane has reached further than its files go.
    """

    def __init__(self, storage: Storage, identity: Identity, lane: int) -> None:
        self.storage = storage
        self.identity = identity
        self.lane = lane
        self.folder = str(lane)
        self.packs_folder = f"{lane}/{PACKS}"

    @property
    def what(self) -> str:
        """The lane as an error names it."""
        return f"lane {self.lane} of the journal {self.storage.url}"

    def names(self) -> list[str]:
        """The names of the lane's files, and of its packs; a listed file is durable.

        Packs are listed after blocks: a block that was packed meanwhile is in one or the other.
        """
        names = self.storage.names(self.folder)
        if PACKS in names or isinstance(self.storage, LocalStorage):  # made since, perhaps
            names += self.storage.names(self.packs_folder)
        return names

    def index(self) -> LaneIndex:
        """Return the index of the lane's file names."""
        return LaneIndex.of(self.names())

    def held(self, index: LaneIndex, offset: int, read: Callable[[int, int | None], T]) -> T:
        """Read the block or the pack that holds an offset, by an index in which one does.

        It may have been packed since that was listed: then the lane is listed once more. ``read``
        receives the file's first offset, and the end of a pack.

        Raises:
            FileNotFoundError: It was pruned, or declared lost, since.
        """
        first = index.holding(offset)
        try:
            if first is not None:
                return read(first, index.packs.get(first))
        except FileNotFoundError:
            index = self.index()
            first = index.holding(offset)
        if first is None or first in index.lost or offset < index.start:
            raise FileNotFoundError(f"{self.what} has no offset {offset} any more")
        return read(first, index.packs.get(first))

    def losses(self, index: LaneIndex) -> "list[Lost]":
        """The offsets that were declared lost, ascending; each costs a small file."""
        return [self.lost(first) for first in sorted(index.lost)]

    def path(self, first: int, kind: str = BLOCK) -> str:
        """Return the path of the file that begins at an offset; not of a pack."""
        return f"{self.folder}/{file_name(first, kind)}"

    def path_of(self, first: int, until: int | None) -> str:
        """Return the path of a block, or of the pack that ends at ``until``."""
        return f"{self.packs_folder}/{pack_name(first, until)}" if until else self.path(first)

    def set_aside(self, path: str) -> None:
        """Give a file another name, under which no reader finds it."""
        folder, _, name = path.rpartition("/")
        self.storage.set_aside(path, f"{folder}/{corrupt_name(name)}")

    def shown(self, path: str) -> str:
        """A path as an error names it."""
        return f"{self.storage.url}/{path}"

    def offsets(self, start: int, until: int) -> OffsetRange:
        """Some of the lane's offsets."""
        return OffsetRange(self.identity.name, self.lane, start, until)

    def end(self, index: LaneIndex) -> LaneEnd:
        """Return the end of the lane, with a last block that only the mark has."""
        end = self.last_end(index)
        spare = self.spare_behind(index, end.until)
        return end if spare is None else end._replace(spare_until=spare.until)

    def spare_behind(self, index: LaneIndex, end: int) -> BlockHeader | None:
        """The block that goes on where the last file ends, and whose only name is the mark.

        It is not missing: the next writer of the lane, or ``repair``, restores its name. None where
        there is no such block, or where the lane goes on by now.
        """
        mark = index.mark
        if mark <= end or self.last_end(self.index()).until >= mark:  # the first listing was a race
            return None
        spare = self.spare(mark)
        if spare is not None and spare.first == end:
            return spare
        raise CorruptionError(
            f"{self.what[0].upper()}{self.what[1:]} ends at offset {end}, although it had reached"
            f" {mark}: its last files are gone; put them back, or let `headrace journal repair`"
            " declare those offsets lost."
        )

    def look(self) -> "LaneLook":
        """Return the present state of the lane."""
        index = self.index()
        return LaneLook(self, index, self.end(index))

    def without_name(self, end: LaneEnd) -> str:
        """Describe a last block whose only name is the mark, as a sentence."""
        return (
            "The last block has lost its name, and only the lane's mark has it still, so that"
            f" offsets [{end.until}, {end.spare_until}) of {self.what} cannot be read, and nobody"
            " knows whether they were acknowledged; start the receiver of the lane, or run"
            f" `headrace journal repair {self.storage.url}`: either gives the block its name again."
        )

    def spare(self, mark: int) -> BlockHeader | None:
        """The header of the block that a mark has as its second name, if it is whole."""
        path = self.path(mark, END)
        try:
            header, _ = decode(self.storage.read(path), path, [])
        except (FileNotFoundError, CorruptionError):
            return None
        says = (header.journal_id, header.lane, header.until)
        return header if says == (self.identity.id, self.lane, mark) else None

    def last_end(self, index: LaneIndex) -> LaneEnd:
        """Return the end of the last file, whatever the lane has reached."""
        if index.last is None:
            return LaneEnd(index.start)
        if index.last in index.lost:
            return LaneEnd(self.lost(index.last).until)
        header = self.held(index, index.last, self.header)
        return LaneEnd(header.until, header.checksum)

    def header(self, first: int, until: int | None = None) -> BlockHeader:
        """A block's header, or that of the pack that ends at ``until``, compared with its name."""
        path = self.path_of(first, until)
        start, size = self.storage.read_start(path, HEADER_BYTES)
        header = decode_header(start, None if until else size, self._place(path, first))
        return self._placed(header, first, until)

    def claimed_end(self, first: int) -> int | None:
        """Return the end in a damaged block's header; None if the header is damaged as well."""
        path = self.path(first)
        start, _ = self.storage.read_start(path, HEADER_BYTES)
        try:
            return self._placed(decode_header(start, None, path), first).until
        except CorruptionError:
            return None

    def block(
        self, first: int, columns: Sequence[str], until: int | None = None
    ) -> tuple[BlockHeader, pa.RecordBatch]:
        """A block, or the pack that ends at ``until``, checked whole.

        With some of the columns of ``records.SCHEMA``.
        """
        path = self.path_of(first, until)
        place, is_pack = self._place(path, first), until is not None
        header, batch = decode(self.storage.read(path), place, columns, is_pack=is_pack)
        return self._placed(header, first, until), batch

    def path_at(self, index: LaneIndex, first: int) -> str:
        """Return the path of the file of an index that begins at an offset, whatever it is."""
        is_pack = first in index.packs and first not in index.lost
        folder = self.packs_folder if is_pack else self.folder
        return f"{folder}/{index.file_at(first)}"

    def checksum_before(self, header: BlockHeader, until: int | None, offset: int) -> int:
        """The checksum of the block with the record before an offset in a block, or in a pack.

        0 where it is not known. At the first offset that is the block before; only within a pack,
        which ends at ``until``, it costs a read.
        """
        if offset == header.first:
            return header.previous
        if until is None or offset == until:
            return header.checksum
        path = self.path_of(header.first, until)
        ends = decode_ends(self.storage.read(path), header, self._place(path, header.first))
        return int(ends["checksum"][np.searchsorted(ends["until"], np.uint64(offset))])

    def lost(self, first: int) -> Lost:
        """The declaration of lost offsets."""
        path = self.path(first, LOST)
        text, _ = self.storage.read_start(path, _MOST_LOST_BYTES)
        try:
            lost = Lost.decode(text)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(
                f"{self._place(path, first)} is damaged: it does not say which offsets are lost; "
                "let `headrace journal repair` write it again."
            ) from error
        if lost.first != first or lost.until <= first:
            raise CorruptionError(
                f"{self._place(path, first)} is damaged: it is about the offsets [{lost.first}, "
                f"{lost.until}); let `headrace journal repair` write it again."
            )
        return lost

    def _place(self, path: str, first: int) -> str:
        return f"{self.shown(path)} (offset {first} of lane {self.lane})"

    def _placed(self, header: BlockHeader, first: int, until: int | None = None) -> BlockHeader:
        """The header, if it is that of the block, or of the pack, that belongs there."""
        says = (header.journal_id, header.lane, header.first, header.until)
        should = (self.identity.id, self.lane, first, until or header.until)
        if says != should or header.count == 0:
            of_another = header.journal_id != self.identity.id
            raise CorruptionError(
                f"{self._place(self.path_of(first, until), first)} is not the block of its name: "
                f"it holds lane {header.lane} [{header.first}, {header.until})"
                f"{' of another journal' if of_another else ''}; put back the file that was there, "
                "or let `headrace journal repair` set this one aside."
            )
        return header


@dataclass(frozen=True, slots=True)
class LaneLook:
    """A lane at one moment: its file names, and its end."""

    files: LaneFiles
    index: LaneIndex
    end: LaneEnd

    def lost(self) -> list[Lost]:
        """The offsets that were declared lost, ascending; each costs a small file."""
        return self.files.losses(self.index)

    def checksum_before(self, offset: int) -> int:
        """The checksum of the block that has the record before an offset; 0 if none has it.

        It costs a header, unless the lane ends there; within a pack, the pack.
        """
        if offset == self.end.until:
            return self.end.checksum
        first = self.index.holding(offset - 1)
        if offset <= self.index.start or first is None or first in self.index.lost:
            return 0

        def checksum(first: int, until: int | None) -> int:
            header = self.files.header(first, until)
            is_within = offset <= header.until
            return self.files.checksum_before(header, until, offset) if is_within else 0

        try:
            return self.files.held(self.index, offset - 1, checksum)
        except (FileNotFoundError, CorruptionError):
            return 0  # pruned or declared lost since; or damaged, which whoever reads it finds
