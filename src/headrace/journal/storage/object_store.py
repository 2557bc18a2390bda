"""Storage of a journal under a prefix of a bucket in S3 (or compatible), Google Cloud or Azure.

A file is written by one conditional put, which fails if the name is taken. The put is atomic, and
durable once the store responds. No lock is needed, and none can remain after a crash: if two
writers write the same offset, the second writer finds the name taken and stops.
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
"""Options of obstore's HTTP client. A self-hosted store may have an http:// URL. Credentials are
sent only to the endpoint that the user sets."""

_RETRIES: Final[Any] = {
    "max_retries": 5,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2.0,
    },
    "retry_timeout": timedelta(seconds=60),
}
"""Retries of a request that got a 5xx response or no response. All retries together take 3 s or
more. If the last retry fails, the append fails, and senders must send the records again."""


class ObjectStorage(Storage):
    """Storage under ``bucket/path`` of the object store that the URL's scheme names.

    The scheme is ``s3``, ``gs`` or ``az``; in Azure a bucket is a container. obstore takes keys,
    account, region and endpoint from environment variables (``AWS_``, ``GOOGLE_``, ``AZURE_``), or
    else uses the machine's own identity.
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
        """Do nothing, because object stores have no folders."""

    def create_folder(self, folder: str) -> None:
        """Do nothing, because object stores have no folders."""

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
            if at >= end:  # stores refuse an empty range
                return pa.py_buffer(b"")
            return pa.py_buffer(bytes(self._files.get_range(where, start=at, end=end)))

    def synced_size(self, path: str) -> int:
        with _as_os_errors():
            return int(self._files.head(self._path(path))["size"])

    def put(self, path: str, parts: Sequence[Part]) -> None:
        """Write a file by one conditional put, which fails if the name is taken."""
        with _as_os_errors():
            # In one request: a multipart upload is not a conditional put in every store.
            self._files.put(self._path(path), b"".join(parts), mode="create", use_multipart=False)

    def set_aside(self, path: str, to: str) -> None:
        """Copy a file to the new name, then remove the file under the old name."""
        self.put(to, [self.read(path)])
        with _as_os_errors():
            self._files.delete(self._path(path))

    def remove(self, folder: str, names: Sequence[str]) -> None:
        """Remove files one by one, because a store processes a bulk request in any order."""
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
    """Convert obstore's exceptions to ``OSError`` and its subclasses, with one-line messages."""
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
    """Return the first line of an error's message; later lines have the request's headers."""
    return str(error).strip().split("\n")[0]
