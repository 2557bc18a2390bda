"""A journal under a prefix of an S3 bucket, or of a store that speaks its protocol.

A file is one put that fails where the name is taken (``If-None-Match: *``): atomic, durable when it
is answered, and what keeps a lane to one writer. No lock is needed, nor is there one that a crash
would leave: of two writers that append to a lane, one finds the name taken by the other, and stops.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from headrace.core.extras import needs_extra
from headrace.journal.block import Part
from headrace.journal.storage import Entry, Storage

with needs_extra("s3", "A journal at an s3:// URL"):
    import botocore.exceptions
    import s3fs

_ONE_PUT: Final = 5 * 2**30
"""Bytes up to which a file is sent at once: a put in parts would not be atomic everywhere."""


class ObjectStorage(Storage):
    """A prefix of a bucket: ``bucket/path``, without the scheme.

    Keys, region and endpoint are those of the environment or of the files of AWS, as for every
    program that uses botocore.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._files = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)

    @property
    def url(self) -> str:
        return f"s3://{self._prefix}"

    def create(self) -> None:
        """Nothing: a prefix is there with the first file under it."""

    def create_folder(self, folder: str) -> None:
        """Nothing, too."""

    def folders(self) -> list[str]:
        return [name for name, status in self._list("") if status["type"] == "directory"]

    def names(self, folder: str) -> list[str]:
        return [name for name, status in self._list(folder) if status["type"] == "file"]

    def entries(self, folder: str) -> list[Entry]:
        return [
            Entry(name, status["size"], int(status["LastModified"].timestamp() * 1000))
            for name, status in self._list(folder)
            if status["type"] == "file"
        ]

    def _list(self, folder: str) -> list[tuple[str, dict[str, Any]]]:
        path = f"{self._prefix}/{folder}" if folder else self._prefix
        with _as_os_errors():
            try:
                listed = self._files.ls(path, detail=True)
            except FileNotFoundError:
                return []
        return [(status["name"].rpartition("/")[2], status) for status in listed]

    def read(self, path: str) -> pa.Buffer:
        with _as_os_errors():
            return pa.py_buffer(self._files.cat_file(f"{self._prefix}/{path}"))

    def read_start(self, path: str, size: int) -> tuple[bytes, int]:
        where = f"{self._prefix}/{path}"
        with _as_os_errors():
            length = int(self._files.info(where)["size"])
            start = self._files.cat_file(where, start=0, end=min(size, length)) if length else b""
        return start, length

    def prepare(self, path: str, parts: Sequence[Part]) -> "PreparedPut":
        """Keep a file until it is put."""
        return PreparedPut(self._files, f"{self._prefix}/{path}", b"".join(parts))

    def set_aside(self, path: str, to: str) -> None:
        """Copy a file, then remove it under the name it had."""
        self.put(to, [self.read(path)])
        with _as_os_errors():
            self._files.rm_file(f"{self._prefix}/{path}")

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Remove files, up to a thousand in a request."""
        with _as_os_errors():
            if names:
                self._files.rm([f"{self._prefix}/{folder}/{name}" for name in names])


class PreparedPut:
    """A file that is to be put."""

    def __init__(self, files: Any, path: str, data: bytes) -> None:
        self._files = files
        self._path = path
        self._data = data

    def commit(self, mark: str | None = None, outdated: Sequence[str] = ()) -> bool:
        """Put it, if the name is free; a second name would be a second put."""
        with _as_os_errors():
            self._files.pipe_file(self._path, self._data, chunksize=_ONE_PUT, mode="create")
        return False

    def discard(self) -> None:
        """Nothing: nothing was sent yet."""


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise what botocore raises of its own as the ``OSError`` that s3fs makes of the rest."""
    try:
        yield
    except botocore.exceptions.BotoCoreError as error:
        raise OSError(str(error)) from error
