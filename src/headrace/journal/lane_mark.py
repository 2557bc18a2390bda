"""Highest offset that a lane has reached, which its last block alone cannot say once it is gone.

A mark is a file whose name is the offset after the last block's. In a directory it is a second name
of that block, given before the sync of the folder that makes the block's own name durable: so it
costs no further sync, and a crash that leaves the mark alone leaves the block in it. Elsewhere it
is an empty file, put after the block by a thread that no acknowledgement waits for.

The previous mark stays until the next block is durable, so that one of them always is. If a lane
has lost all its files, a file of the root says that it had records.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from headrace.core.timing import WarnOnce
from headrace.errors import CorruptionError
from headrace.journal.lane_files import LaneEnd, LaneFiles
from headrace.journal.names import END, file_name, written_name
from headrace.journal.storage import Prepared

_LOG: Final = logging.getLogger("headrace.journal")


class LaneMark:
    """Keeps the mark of a lane that is being written, and checks the lane against it."""

    def __init__(self, files: LaneFiles) -> None:
        self._files = files
        self._marks: Sequence[int] = ()
        self._reached = 0
        self._behind = WarnOnce(_LOG)
        self._noted = False
        self._follow: ThreadPoolExecutor | None = None
        self._following: Future[None] | None = None

    def settle(self) -> LaneEnd:
        """Find the lane's end, and have the mark say it; nothing may be committed meanwhile.

        A block whose only name is the mark gets its own back.

        Raises:
            CorruptionError: The last block is damaged, or the lane has reached further than that.
            OSError: The storage fails.
        """
        if self._following is not None:
            self._following.result()
        files = self._files
        index = files.index()
        if index.last is None or index.last in index.lost:
            end = files.last_end(index)
        else:
            # Checked whole, and not only its header.
            header, _ = files.held(index, index.last, lambda at, until: files.block(at, [], until))
            end = LaneEnd(header.until, header.checksum)
        self._noted = is_noted(files)
        if self._noted and end.until == index.mark == 0:
            raise CorruptionError(nothing_left(files))
        if index.mark > end.until:
            if files.spare_behind(index, end.until) is not None:
                restore(files, index.mark)
            return self.settle()
        self._marks = index.marks
        if end.until != index.mark:
            with suppress(FileExistsError):
                files.storage.put(files.path(end.until, END), [])
            self._marks = (*index.marks, end.until)
        if end.until:
            self._note()
        return end

    def commit(self, prepared: Prepared, until: int) -> None:
        """Give a block its name, durably, and the lane its mark.

        Raises:
            FileExistsError: The block's name is taken.
            OSError: It is not durable, or nobody knows.
        """
        outdated = [self._files.path(each, END) for each in self._marks[:-1]]
        if prepared.commit(self._files.path(until, END), outdated):
            self._marks = (*self._marks[-1:], until)
            self._note()
            return
        self._note()
        self._reached = until
        if self._follow is None:
            name = f"headrace-lane-{self._files.lane}-mark"
            self._follow = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._following = self._follow.submit(self._catch_up)

    def _note(self) -> None:
        """Write down, once, that the lane has had records."""
        if not self._noted:
            with suppress(FileExistsError):
                self._files.storage.put(written_name(self._files.lane), [])
            self._noted = True

    def close(self) -> None:
        """Wait until the mark has followed the last block, or has failed to."""
        if self._follow is not None:
            self._follow.shutdown()

    def _catch_up(self) -> None:
        """Put the newest mark, unless an earlier call has."""
        until, storage = self._reached, self._files.storage
        if until in self._marks:
            return
        try:
            with suppress(FileExistsError):
                storage.put(self._files.path(until, END), [])
            outdated, self._marks = self._marks, (until,)
            storage.remove(self._files.folder, [file_name(each, END) for each in outdated])
        except OSError as error:
            self._behind.warn(
                "How far %s has reached could not be written down: %s; it is tried again with"
                " the next block, and until then nobody would notice if the last ones were"
                " removed.",
                self._files.what,
                error,
            )
        else:
            self._behind.clear()


def is_noted(files: LaneFiles) -> bool:
    """Whether it is written down that a lane has had records."""
    return written_name(files.lane) in files.storage.names("")


def nothing_left(files: LaneFiles) -> str:
    """Why a lane that has had records, and has no file, does not begin at 0."""
    return (
        f"Nothing is left of {files.what}, which had records; put its folder back, or let"
        f" `headrace journal repair` with --reached {files.lane}:OFFSET declare lost what was below"
        " an offset that it had not reached."
    )


def restore(files: LaneFiles, mark: int) -> None:
    """Restore a block's own name from its mark."""
    spare = files.spare(mark)
    if spare is not None:
        with suppress(FileExistsError):
            files.storage.put(files.path(spare.first), [files.storage.read(files.path(mark, END))])
