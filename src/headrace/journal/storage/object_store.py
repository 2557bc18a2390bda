"""A journal under a prefix of a bucket: S3 and what speaks its protocol, Google's store, Azure's.

A file is one put that fails where the name is taken (a conditional put): it is atomic, durable when
it is answered, and keeps a lane to one writer. No lock is needed, nor is there one that a crash
would leave: of two writers that append to a lane, one finds the name taken by the other, and stops.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from headrace.core.system import needs_extra
from headrace.journal.block import Part
from headrace.journal.storage import Entry, Storage

with needs_extra("object-store", "A journal in an object store"):
    from obstore import exceptions
    from obstore.store import AzureStore, GCSStore, S3Store

_STORES: Final = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}

_CLIENT: Final[Any] = {"allow_http": True, "timeout": timedelta(seconds=60)}
"""A store of your own may be at an http:// address; keys are only sent where the user says."""

_RETRIES: Final[Any] = {
    "max_retries": 5,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2.0,
    },
    "retry_timeout": timedelta(seconds=60),
}
"""Retries of a request with an answer of 5xx or none, for three seconds or more; then the append
fails, and its senders send again."""


class ObjectStorage(Storage):
    """A prefix of a bucket, or of a container: ``bucket/path`` at ``s3://``, ``gs://`` or ``az://``.

    Keys, account, region and endpoint come from the environment (``AWS_``, ``GOOGLE_``, ``AZURE_``)
    or from the machine that it runs on, as obstore finds them.
    """

    appends = False

    def __init__(self, scheme: str, place: str) -> None:
        bucket, _, prefix = place.partition("/")
        self._url = f"{scheme}://{place}"
        self._prefix = prefix.strip("/")
        with _as_os_errors():
            self._files: Any = _STORES[scheme](
                bucket, client_options=_CLIENT, retry_config=_RETRIES
            )

    @property
    def url(self) -> str:
        return self._url

    def create(self) -> None:
        """Nothing: a prefix is there with the first file under it."""

    def create_folder(self, folder: str) -> None:
        """Nothing, too."""

    def folders(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self._list("")["common_prefixes"]]

    def names(self, folder: str) -> list[str]:
        listed = self._list(folder)
        paths = [*listed["common_prefixes"], *(meta["path"] for meta in listed["objects"])]
        return [path.rpartition("/")[2] for path in paths]

    def entries(self, folder: str) -> list[Entry]:
        return [
            Entry(
                meta["path"].rpartition("/")[2],
                meta["size"],
                int(meta["last_modified"].timestamp() * 1000),
                meta["size"],
            )
            for meta in self._list(folder)["objects"]
        ]

    def _list(self, folder: str) -> Any:
        with _as_os_errors():
            return self._files.list_with_delimiter(self._path(folder))

    def _path(self, path: str) -> str:
        return f"{self._prefix}/{path}".strip("/")

    def read(self, path: str, at: int = 0, size: int | None = None) -> pa.Buffer:
        where = self._path(path)
        with _as_os_errors():
            if not at and size is None:
                return pa.py_buffer(self._files.get(where).bytes())
            length = int(self._files.head(where)["size"])
            end = length if size is None else min(length, at + size)
            if at >= end:  # of which no range can be asked for
                return pa.py_buffer(b"")
            return pa.py_buffer(bytes(self._files.get_range(where, start=at, end=end)))

    def synced_size(self, path: str) -> int:
        with _as_os_errors():
            return int(self._files.head(self._path(path))["size"])

    def put(self, path: str, parts: Sequence[Part]) -> None:
        """Put a file, if the name is free."""
        with _as_os_errors():
            # At once: a put in parts would not be atomic everywhere.
            self._files.put(self._path(path), b"".join(parts), mode="create", use_multipart=False)

    def set_aside(self, path: str, to: str) -> None:
        """Copy a file, then remove it under the name it had."""
        self.put(to, [self.read(path)])
        with _as_os_errors():
            self._files.delete(self._path(path))

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Remove files one by one: a store removes many of one request in any order."""
        for name in names:
            self._remove_one(f"{folder}/{name}")

    def _remove_one(self, path: str) -> None:
        try:
            with _as_os_errors():
                self._files.delete(self._path(path))
        except FileNotFoundError:
            return


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise obstore's exceptions as the ``OSError`` that a `Storage` raises, in one line."""
    try:
        yield
    except FileNotFoundError:
        raise
    except exceptions.NotFoundError as error:
        raise FileNotFoundError(_reason(error)) from error
    except exceptions.AlreadyExistsError as error:
        raise FileExistsError(_reason(error)) from error
    except exceptions.BaseError as error:
        raise OSError(_reason(error)) from error


def _reason(error: Exception) -> str:
    """Return the first line: the library's own structures follow, with a request's headers."""
    return str(error).strip().split("\n")[0]
