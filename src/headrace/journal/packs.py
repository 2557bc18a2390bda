"""Packs: second copies of many small blocks in one file, so that reading them costs no more.

Low acknowledgement latency makes small blocks, and a reader pays for each file. So the writer of a
lane in a directory copies every 64 small blocks that it has written in a row into a pack, and every
64 packs, or 8 MiB of them, into one; a writer that is closed does so with the rest. A pack is a
block, followed by where each of its blocks ends and that block's checksum. Packs have a folder of
their own beside the lane::

    .packs-7/00000000000000000500-00000000000000000564.pack

A pack replaces nothing: the blocks keep their names, their offsets and their place in the chain
of checksums, and whatever is wrong with a pack, they are read instead. A reader uses one only where
the chain says that it stands for the blocks which are in the lane now. So none of this is synced,
and nothing waits for it.
"""

import logging
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32

from headrace.errors import CorruptionError, HeadraceError
from headrace.journal.block import (
    HEADER_BYTES,
    Block,
    BlockHeader,
    Compression,
    Part,
    decode_header,
    decode_payload,
    encode,
)
from headrace.journal.lane_files import LaneFiles
from headrace.journal.names import pack_name, packed, packs_folder
from headrace.journal.records import SCHEMA, Records
from headrace.journal.storage.local import LocalStorage

SMALL_BYTES: Final = 16 * 1024
"""Largest size of a small block's records in memory (bytes), also of an empty one; for a larger
block, the overhead of a file is small."""

TOGETHER: Final = 64
"""Blocks in a pack, and packs in one of the second size."""

_WORTH_IT: Final = 8
"""Fewer blocks than these are left as they are when the writer is closed."""

_PACK_BYTES: Final = 8 * 2**20
"""Packs of the second size have about so much in memory, where a reader keeps one."""

_MOST_WAITING: Final = 8
"""Packs that wait to be made (1 MiB each, or less); the blocks of more are left as they are."""

_ENTRY: Final = np.dtype([("until", "<u8"), ("checksum", "<u4")])
_CRC: Final = struct.Struct("<I")
_LOG: Final = logging.getLogger("headrace.journal")


@dataclass(frozen=True, slots=True)
class Pack:
    """Contents of a pack.

    Attributes:
        header: Header of a block with all its records.
        ends: End of each of its blocks, ascending, and its checksum.
        payload: The records.
        name: Name in an error.
        memory_bytes: Size of its records in memory; 0 for a pack that was read.
    """

    header: BlockHeader
    ends: npt.NDArray[np.void]
    payload: pa.Buffer
    name: str
    memory_bytes: int = 0

    @property
    def last_first(self) -> int:
        """First offset of its last block."""
        return int(self.ends["until"][-2]) if len(self.ends) > 1 else self.header.first

    @property
    def checksum(self) -> int:
        """The last one's."""
        return int(self.ends["checksum"][-1])

    def checksum_before(self, offset: int) -> int | None:
        """Return the checksum of the block that ends at an offset; None if none does."""
        if offset == self.header.first:
            return self.header.previous
        place = int(np.searchsorted(self.ends["until"], np.uint64(offset)))
        is_end = place < len(self.ends) and self.ends["until"][place] == offset
        return int(self.ends["checksum"][place]) if is_end else None

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """Each of its blocks: its first offset, the one after its last, and its checksum."""
        first = self.header.first
        for until, checksum in self.ends.tolist():
            yield first, until, checksum
            first = until

    def batch(self, columns: Sequence[str]) -> pa.RecordBatch:
        """Its records, checked as those of any block."""
        return decode_payload(self.header, self.payload, self.name, columns)


def read_pack(files: LaneFiles, first: int, until: int) -> Pack:
    """The pack of these offsets.

    Raises:
        CorruptionError: It is not what was written.
        FileNotFoundError: There is none.
        OSError: The storage fails.
    """
    path = f"{packs_folder(files.lane)}/{pack_name(first, until)}"
    data, name = files.storage.read(path), files.shown(path)
    header = decode_header(data.slice(0, min(HEADER_BYTES, data.size)).to_pybytes(), None, name)
    end = HEADER_BYTES + header.payload_bytes
    table = data.slice(end).to_pybytes() if data.size > end else b""
    entries = table[: -_CRC.size]
    says = (header.journal_id, header.lane, header.first, header.until)
    if (
        says != (files.identity.id, files.lane, first, until)
        or not entries
        or len(entries) % _ENTRY.itemsize
        or _CRC.unpack(table[-_CRC.size :])[0] != crc32(entries, header.payload_crc)
    ):
        raise CorruptionError(f"{name} is damaged: it is not the pack of its name.")
    ends = np.frombuffer(entries, _ENTRY)
    return Pack(header, ends, data.slice(HEADER_BYTES, header.payload_bytes), name)


class PackReader:
    """Finds packs that go on where a block ends; lists them once, and again behind the last."""

    def __init__(self, files: LaneFiles) -> None:
        self._files = files
        self._packs: list[tuple[int, int]] = []
        self._listed_until = -1

    def after(
        self, offset: int, checksum: int, columns: Sequence[str]
    ) -> tuple[Pack, pa.RecordBatch] | None:
        """The pack that goes on at an offset, behind a block with a checksum, and its records.

        None where there is none, where it is damaged, where the lane's blocks are others by now, or
        where the checksum is not known (0).
        """
        if checksum == 0:
            return None
        with suppress(OSError, HeadraceError):
            found = self._found(offset)
            pack = None if found is None else read_pack(self._files, *found)
            if pack is not None and pack.checksum_before(offset) == checksum:
                return self._checked(pack, columns)
        return None

    def ending_at(self, until: int, columns: Sequence[str]) -> tuple[Pack, pa.RecordBatch] | None:
        """The longest pack that ends at an offset, and its records; None as `after`."""
        with suppress(OSError, HeadraceError):
            self._list(until)
            ending = [each for each in self._packs if each[1] == until]
            if ending:
                return self._checked(read_pack(self._files, *min(ending)), columns)
        return None

    def _checked(self, pack: Pack, columns: Sequence[str]) -> tuple[Pack, pa.RecordBatch] | None:
        """A pack whose last block is the one in the lane; so are those before it, by the chain."""
        there = self._files.header(pack.last_first)
        if (there.checksum, there.until) != (pack.checksum, pack.header.until):
            return None
        return pack, pack.batch(columns)

    def _list(self, offset: int) -> None:
        if offset >= self._listed_until:
            self._packs = sorted(lane_packs(self._files))
            last = max((until for _, until in self._packs), default=0)
            self._listed_until = max(last, offset) + 1_000  # behind them it is not listed each time

    def _found(self, offset: int) -> tuple[int, int] | None:
        """The longest pack with an offset."""
        self._list(offset)
        place = bisect_right(self._packs, (offset, offset + 2**63))
        holding = [each for each in self._packs[max(0, place - 2) : place] if offset < each[1]]
        return max(holding, key=lambda each: each[1] - each[0], default=None)


class Packer:
    """Makes packs of the blocks that a lane's writer has written, in a thread of its own.

    It syncs nothing, so that no block which is being synced waits for the disk because of it. A
    pack that a power failure damages is detected as damaged, and the blocks are read.
    """

    def __init__(self, files: LaneFiles, storage: LocalStorage, compression: Compression) -> None:
        self._files = files
        self._storage = storage
        self._compression: Compression = compression
        self._run: list[tuple[BlockHeader, Records]] = []
        self._packs: list[Pack] = []
        self._thread: ThreadPoolExecutor | None = None
        self._places: Final = threading.Semaphore(_MOST_WAITING)
        self._failed = False

    def add(self, block: Block, records: Records) -> None:
        """Note a block that is durable; they come in order."""
        header = block.header
        if self._run and self._run[-1][0].until != header.first:
            self._run = []
        if records.batch.nbytes > SMALL_BYTES or self._failed:
            self._run = []
            return
        self._run.append((header, records))
        if len(self._run) < TOGETHER:
            return
        run, self._run = self._run, []
        if self._thread is None:
            name = f"headrace-lane-{self._files.lane}-pack"
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        if self._places.acquire(blocking=False):
            packing = self._thread.submit(self._try, partial(self._pack, run))
            packing.add_done_callback(lambda _: self._places.release())

    def close(self) -> None:
        """Pack the rest if it is worth it, and return when all is done."""
        if self._thread is not None:
            self._thread.shutdown()
        if len(self._run) >= _WORTH_IT and not self._failed:
            self._try(partial(self._pack, self._run))
        if len(self._packs) > 1 and not self._failed:
            self._try(partial(self._join, self._packs))
        self._run, self._packs = [], []

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (OSError, HeadraceError) as error:
            self._failed = True
            _LOG.warning(
                "The small blocks of %s cannot be packed, and are read one by one: %s.",
                self._files.what,
                error,
            )

    def write(self, blocks: Sequence[tuple[BlockHeader, Records]]) -> Pack:
        """Write the pack of some blocks in a row, in place of one of the same name."""
        headers = [header for header, _ in blocks]
        return self._write(
            Records.concat(records for _, records in blocks),
            headers[0],
            np.array([(header.until, header.checksum) for header in headers], _ENTRY),
        )

    def _pack(self, run: Sequence[tuple[BlockHeader, Records]]) -> None:
        made = self.write(run)
        if self._packs and self._packs[-1].header.until != made.header.first:
            self._packs = []
        self._packs.append(made)
        size_bytes = sum(pack.memory_bytes for pack in self._packs)
        if len(self._packs) == TOGETHER or size_bytes >= _PACK_BYTES:
            packs, self._packs = self._packs, []
            self._join(packs)

    def _join(self, packs: Sequence[Pack]) -> None:
        """Put packs into one, and remove them."""
        whole = [
            read_pack(self._files, pack.header.first, pack.header.until).batch(SCHEMA.names)
            for pack in packs
        ]
        self._write(
            Records.concat(Records(batch) for batch in whole),
            packs[0].header,
            np.concatenate([pack.ends for pack in packs]),
        )
        names = [pack_name(pack.header.first, pack.header.until) for pack in packs]
        self._storage.remove_undurably(packs_folder(self._files.lane), names)

    def _write(self, records: Records, first: BlockHeader, ends: npt.NDArray[np.void]) -> Pack:
        block = encode(
            records,
            journal_id=first.journal_id,
            writer=first.writer,
            lane=first.lane,
            first=first.first,
            previous=first.previous,
            compression=self._compression,
        )
        header = block.header
        entries = ends.tobytes()
        table = entries + _CRC.pack(crc32(entries, header.payload_crc))
        name = pack_name(header.first, header.until)
        self._put(name, [*block.parts, table])
        return Pack(header, ends, pa.py_buffer(b""), name, records.batch.nbytes)

    def _put(self, name: str, parts: Sequence[Part]) -> None:
        folder = packs_folder(self._files.lane)
        put = partial(self._storage.put_undurable, f"{folder}/{name}", parts)
        try:
            put()
        except FileNotFoundError:
            self._storage.create_folder(folder)
            put()
        except FileExistsError:  # of an earlier life of the lane, before a backup was put back
            self._storage.remove_undurably(folder, [name])
            put()


def remove_packs(files: LaneFiles, until: int) -> None:
    """Remove the packs that end at or before an offset; raises OSError."""
    _remove(files, [pack for pack in lane_packs(files) if pack[1] <= until])


def remove_packs_beyond(files: LaneFiles, end: int) -> None:
    """Remove the packs of blocks at or after a lane's end, whose offsets are given again.

    They are of an earlier life of the lane, before a backup was put back. Raises OSError.
    """
    _remove(files, [pack for pack in lane_packs(files) if pack[1] > end])


def _remove(files: LaneFiles, packs: Sequence[tuple[int, int]]) -> None:
    if packs:
        files.storage.remove(packs_folder(files.lane), [pack_name(*pack) for pack in packs])


def lane_packs(files: LaneFiles) -> list[tuple[int, int]]:
    """The offsets of a lane's packs, in no order; elsewhere than in a directory there are none."""
    if not isinstance(files.storage, LocalStorage):
        return []
    names = files.storage.names(packs_folder(files.lane))
    return [found for name in names if (found := packed(name)) is not None]
