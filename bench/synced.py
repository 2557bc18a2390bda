"""Plain synced writes: what a disk allows whoever wants to lose nothing."""

import os
import time
from pathlib import Path


def synced_blocks(folder: Path, data: bytes, times: int) -> list[float]:
    """Write some bytes so many times as a block is: to a new file, synced, named, and synced.

    Returns:
        The time until each was durable (s).
    """
    took_s = []
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        for number in range(times):
            began_s = time.perf_counter()
            path = folder / f"synced-{number}"
            with path.with_suffix(".tmp").open("wb", buffering=0) as file:
                file.write(data)
                os.fsync(file.fileno())
            path.with_suffix(".tmp").rename(path)
            os.fsync(descriptor)
            took_s.append(time.perf_counter() - began_s)
            path.unlink()
    finally:
        os.close(descriptor)
    return took_s


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
