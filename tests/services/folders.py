"""Folders for the files of tests and of the servers that they start: in memory, if it has room.

Nothing of that outlives a power failure; what has to is tested with recorded calls of the file
system (`tests/journal/shim.py`). A disk would take minutes to sync the writes of PostgreSQL,
SQLite and journals.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108
_NEEDED_BYTES: Final = 4 * 2**30


def use_memory() -> None:
    """Have temporary folders be in memory, of this process and of those that it starts."""
    if "TMPDIR" in os.environ or not os.access(_IN_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(_IN_MEMORY).free >= _NEEDED_BYTES:
        os.environ["TMPDIR"] = str(_IN_MEMORY)
        tempfile.tempdir = None  # It is looked for again.
