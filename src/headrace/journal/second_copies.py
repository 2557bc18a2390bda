"""Second copies of a lane's blocks, from which `repair` restores damaged or missing ones.

A pack has the records of many small blocks and the checksum of each. In a directory the lane's mark
is a second name of the last block; where the block was replaced, the mark may still have it.

A pack counts for no more than the blocks that can be read let it: the lane may have been put back
from a backup and written on since. Each checksum covers the block with all before it, so one block
that agrees proves all before it in the pack. Without a contradiction the pack counts as a whole: a
writer removes, when it claims the lane, packs that reach beyond the lane's end.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import CorruptionError
from headrace.journal.block import Block, BlockHeader, Part, encode
from headrace.journal.lane_files import LaneFiles, LaneIndex
from headrace.journal.names import BLOCK, END, LOST, file_name, pack_name, packs_folder
from headrace.journal.packs import Pack, Packer, lane_packs, read_pack
from headrace.journal.records import SCHEMA, Records
from headrace.journal.storage.local import LocalStorage

_COMPRESSION: Final = "lz4"


class Kept(NamedTuple):
    """A block of the lane that is whole, or offsets that are declared lost (checksum 0).

    ``previous`` is the checksum of the block that it was written behind; 0 where none is known.
    """

    first: int
    until: int
    checksum: int = 0
    previous: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """A second copy of one block, whole, of which the lane has no whole file.

    ``pack`` is None where the lane's mark is the copy.
    """

    first: int
    until: int
    path: str
    pack: Pack | None


@dataclass(frozen=True, slots=True)
class DamagedCopy:
    """A pack or a mark that is not as it was written, the offsets of its blocks, and the reason."""

    first: int
    until: int
    path: str
    reason: str


class SecondCopies:
    """The second copies of a lane as they are now; raises OSError."""

    def __init__(self, files: LaneFiles) -> None:
        self._files = files
        self._packs: list[Pack] = []
        self._damaged: list[DamagedCopy] = []
        for first, until in sorted(lane_packs(files)):
            try:
                pack = read_pack(files, first, until)
                pack.batch(SCHEMA.names)
                self._packs.append(pack)
            except FileNotFoundError:  # its writer has joined it with others since
                continue
            except CorruptionError as error:
                path = f"{packs_folder(files.lane)}/{pack_name(first, until)}"
                self._damaged.append(DamagedCopy(first, until, path, str(error)))

    def damaged(self, index: LaneIndex) -> list[DamagedCopy]:
        """The packs that are damaged, and the mark, if it is to have the last block."""
        path, last = self._files.path(index.mark, END), index.last
        with suppress(FileNotFoundError):
            _, size = self._files.storage.read_start(path, 1)
            if size and last is not None and self._files.spare(index.mark) is None:
                reason = f"{self._files.shown(path)} is damaged: it is not the lane's last block."
                return [*self._damaged, DamagedCopy(last, index.mark, path, reason)]
        return self._damaged

    def missing(self, index: LaneIndex, kept: Sequence[Kept], reached: int) -> list[Copy]:
        """The copies of blocks that the lane has no more, by offset, none twice.

        ``kept`` is by offset too, and ``reached`` the offset that the lane had reached.
        """
        firsts = [each.first for each in kept]
        taken = [(each.first, each.until) for each in kept]
        copies: list[Copy] = []
        for copy in (*self._marked(index, kept), *self._packed(kept, firsts)):
            place = bisect_left(taken, (copy.until, 0))
            is_free = place == 0 or taken[place - 1][1] <= copy.first
            if is_free and index.start <= copy.first and copy.until <= reached:
                copies.append(copy)
                taken.insert(place, (copy.first, copy.until))
        return sorted(copies, key=lambda each: each.first)

    def _marked(self, index: LaneIndex, kept: Sequence[Kept]) -> Iterator[Copy]:
        """The last block, where the mark has it, and its own name has another file or none.

        Behind a damaged block, the start of a block without a name is unknown.
        """
        spare = self._files.spare(index.mark)
        if spare is None or not len(index.firsts):
            return
        is_last_whole = any(each.first == index.firsts[-1] for each in kept)
        if spare.first in index.firsts or not is_last_whole:
            path = self._files.path(spare.until, END)
            yield Copy(spare.first, spare.until, path, None)

    def _packed(self, kept: Sequence[Kept], firsts: Sequence[int]) -> Iterator[Copy]:
        """The blocks in packs, as far as these can be trusted; ``firsts`` are those of ``kept``."""
        for pack in self._packs:
            begin, end = pack.header.first, pack.header.until
            near = kept[max(0, bisect_left(firsts, begin) - 1) : bisect_right(firsts, end)]
            trusted = _trusted(pack, near)
            path = f"{packs_folder(self._files.lane)}/{pack_name(begin, end)}"
            for first, until, _ in pack.blocks():
                if until <= trusted:
                    yield Copy(first, until, path, pack)


def _trusted(pack: Pack, kept: Sequence[Kept]) -> int:
    """The offset up to which a pack has the lane's own blocks, by those that can be read there."""
    blocks = {first: (until, checksum) for first, until, checksum in pack.blocks()}
    begin, end = pack.header.first, pack.header.until
    proven, disagrees = begin, False
    for each in kept:
        if each.checksum and each.first < end and begin < each.until:
            if blocks.get(each.first) == (each.until, each.checksum):
                proven = max(proven, each.until)
            else:
                disagrees = True
        before = pack.checksum_before(each.first) if begin < each.first <= end else None
        if before is not None and each.previous:
            if before == each.previous:
                proven = max(proven, each.first)
            else:
                disagrees = True
        is_before = each.until == begin and 0 not in (each.checksum, pack.header.previous)
        disagrees |= is_before and each.checksum != pack.header.previous
    return proven if disagrees else end


def restore_block(files: LaneFiles, copy: Copy) -> None:
    """Put a block back from its copy, and set aside whatever has its offsets.

    A crash between leaves a gap, and the copy. Raises OSError, and CorruptionError if the restored
    block cannot be read.
    """
    parts = _parts(files, copy)
    names = files.storage.names(files.folder)
    index = LaneIndex.of(names)
    for first in index.firsts[(index.firsts >= copy.first) & (index.firsts < copy.until)].tolist():
        for name in (file_name(first, BLOCK), file_name(first, LOST)):
            if name in names:
                files.set_aside(f"{files.folder}/{name}")
    files.storage.put(files.path(copy.first), parts)
    files.block(copy.first, [])


def _parts(files: LaneFiles, copy: Copy) -> Sequence[Part]:
    if copy.pack is None:
        return [files.storage.read(copy.path)]
    return block_of(copy.pack, copy.first, copy.until).parts


def block_of(pack: Pack, first: int, until: int) -> Block:
    """One of the blocks in a pack, in its place in the chain of checksums.

    It is not always the same bytes: another version may have encoded it. Then its header says which
    checksum it stands for.
    """
    # Taken, not sliced: the buffers of a slice end with some bytes of the next records.
    rows = np.arange(first, until) - pack.header.first
    block = encode(
        Records(pack.batch(SCHEMA.names).take(pa.array(rows))),
        journal_id=pack.header.journal_id,
        writer=pack.header.writer,
        lane=pack.header.lane,
        first=first,
        previous=pack.checksum_before(first) or 0,
        compression=_COMPRESSION,
    )
    checksum = pack.checksum_before(until) or 0
    if block.header.checksum == checksum:
        return block
    return replace(block, header=replace(block.header, stands_for=checksum))


def remake_copy(files: LaneFiles, damaged: DamagedCopy) -> None:
    """Make a damaged pack again from its blocks; where one of them is gone, remove it.

    A mark that does not have its block is made empty, which says as well how far the lane reached.
    Raises OSError.
    """
    folder, _, name = damaged.path.rpartition("/")
    if folder == files.folder:
        files.storage.remove(folder, [name])
        files.storage.put(damaged.path, [])
        return
    blocks: list[tuple[BlockHeader, Records]] = []
    at = damaged.first
    with suppress(FileNotFoundError, CorruptionError):
        while at < damaged.until:
            header, batch = files.block(at, SCHEMA.names)
            blocks.append((header, Records(batch)))
            at = header.until
    if at == damaged.until and isinstance(files.storage, LocalStorage):
        Packer(files, files.storage, _COMPRESSION).write(blocks)
    else:
        files.storage.remove(folder, [name])
