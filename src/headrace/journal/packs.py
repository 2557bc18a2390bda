"""Packs: one file in the place of many small blocks, so that reading them costs no more.

Low acknowledgement latency makes small blocks, and a reader pays for each file. So the writer of a
lane in a directory puts every 1024 small blocks that it has written in a row into a pack, and a
writer that is closed does so with the rest. A pack is durable, and was read back whole, before its
blocks are removed. From the moment at which it has its name, it counts, and they do not: a crash in
between leaves blocks that nobody reads, and the lane's next writer removes them.

Whoever has listed a block that is gone since lists the lane once more (`LaneFiles.held`). Elsewhere
than in a directory nothing is packed: no lock keeps a second writer out there, only the taken names
of blocks do, and a removed block's name would be free again.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from headrace.errors import CorruptionError, HeadraceError
from headrace.journal.block import Block, BlockHeader, Compression, encode_pack
from headrace.journal.lane_files import LaneFiles
from headrace.journal.names import BLOCK, file_name, is_temporary
from headrace.journal.records import SCHEMA, Records

SMALL_BYTES: Final = 16 * 1024
"""Largest size of a small block's records in memory (bytes), also of an empty one; for a larger
block, the overhead of a file is small."""

TOGETHER: Final = 1024
"""Most blocks in a pack: a reader takes as long to open one as for some hundred records."""

_PACK_BYTES: Final = 4 * 2**20
"""So many bytes in memory are a pack, too: a writer keeps as much until they are packed."""

_WORTH_IT: Final = 8
"""Fewer blocks than these are left as they are when the writer is closed."""

_MOST_WAITING: Final = 2
"""Packs that wait to be made; the blocks of more are left as they are."""

_LOG: Final = logging.getLogger("headrace.journal")


class Packer:
    """Packs the blocks that a lane's writer has written, in a thread of its own.

    The writer has the lane's lock until `close` has returned.
    """

    def __init__(self, files: LaneFiles, compression: Compression) -> None:
        self._files = files
        self._compression: Compression = compression
        self._run: list[tuple[BlockHeader, Records]] = []
        self._run_bytes = 0
        self._thread: ThreadPoolExecutor | None = None
        self._places: Final = threading.Semaphore(_MOST_WAITING)
        self._failed = False
        self._has_folder = False

    def add(self, block: Block, records: Records) -> None:
        """Note a block that is durable; they come in order."""
        header = block.header
        if self._run and self._run[-1][0].until != header.first:
            self._run, self._run_bytes = [], 0
        if records.batch.nbytes > SMALL_BYTES or self._failed:
            self._run, self._run_bytes = [], 0
            return
        self._run.append((header, records))
        self._run_bytes += records.batch.nbytes
        if len(self._run) < TOGETHER and self._run_bytes < _PACK_BYTES:
            return
        run, self._run, self._run_bytes = self._run, [], 0
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
        self._run = []

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

    def _pack(self, run: Sequence[tuple[BlockHeader, Records]]) -> None:
        headers = [header for header, _ in run]
        first, until = headers[0].first, headers[-1].until
        records = Records.concat(records for _, records in run)
        pack = encode_pack(records, headers, self._compression)
        if not self._has_folder:
            self._files.storage.create_folder(self._files.packs_folder)
            self._has_folder = True
        self._files.storage.put(self._files.path_of(first, until), pack.parts)
        _replace(self._files, first, until, [header.first for header in headers])


def finish_packing(files: LaneFiles) -> None:
    """Remove what a crash of a writer has left of blocks that are in a pack, and of half a pack.

    The caller has the lane's lock. Blocks stay whose pack is damaged: `repair` puts them back in
    its place. Raises OSError.
    """
    names = files.storage.names(files.packs_folder)
    files.storage.remove(files.packs_folder, [name for name in names if is_temporary(name)])
    index = files.index()
    for first, until in index.packs.items():
        if left := index.left_within(first, until):
            with suppress(CorruptionError):
                _replace(files, first, until, left)


def _replace(files: LaneFiles, first: int, until: int, blocks: Sequence[int]) -> None:
    """Remove the blocks of a pack, by their first offsets, once the pack was read whole."""
    files.block(first, SCHEMA.names, until)
    files.storage.remove(files.folder, [file_name(block, BLOCK) for block in blocks])
