"""Plain synced writes: what a disk allows whoever wants to lose nothing."""

import os
import time
from pathlib import Path


def synced_writes(folder: Path, data: bytes, times: int) -> list[float]:
    """Write some bytes so many times, one after the other, to one file of a folder.

    Returns:
        The time until each was durable (s). The caller removes the file with its folder.
    """
    path = folder / "synced"
    took_s = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            began_s = time.perf_counter()
            file.write(data)
            os.fdatasync(file.fileno())
            took_s.append(time.perf_counter() - began_s)
    return took_s
