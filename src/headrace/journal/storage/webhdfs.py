"""Storage of a journal in a directory of HDFS, over WebHDFS.

WebHDFS is used because pyarrow's HDFS client needs Hadoop on every machine. HDFS lists a file
before it is complete, so a file is written under a temporary name and then renamed. When the write
returns, all DataNodes with a replica have synced the file. The rename is atomic and durable. It
fails if the name is taken, so no lock is needed: the second of two writers stops.
"""

import getpass
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from headrace.core.system import needs_extra
from headrace.errors import OptionError, SetupError
from headrace.journal.block import Part
from headrace.journal.layout import UNNAMED
from headrace.journal.storage import Entry, Storage

with needs_extra("hdfs", "A journal at a webhdfs:// URL"):
    import requests
    from fsspec.implementations.webhdfs import WebHDFS

PORTS: Final = {"webhdfs": 9870, "swebhdfs": 9871}
"""Default port of a NameNode's HTTP server, by URL scheme."""

TIMEOUT_S: Final = 60
"""Timeout for the first byte of a response, and for each further wait for bytes (s)."""

_SYNCED: Final = "CREATE,SYNC_BLOCK"
"""Flags of the operation CREATE: each HDFS block is synced to disk when the block is closed. The
setting ``dfs.datanode.synconclose`` has the same effect for a whole cluster."""


class WebHdfsStorage(Storage):
    """Storage in an HDFS directory, at ``host:port/path`` of the NameNode's HTTP server.

    The scheme is ``webhdfs``, or ``swebhdfs`` for TLS. The user is ``HADOOP_USER_NAME``, or the
    process's user, as for Hadoop's own tools. Raise OptionError if the address is invalid, and
    SetupError if the process's user has no name.
    """

    appends = False

    def __init__(self, scheme: str, place: str) -> None:
        authority, _, path = place.partition("/")
        host, port = _address(scheme, authority)
        self._root = f"/{path}"
        self._url = f"{scheme}://{authority}{self._root}"
        self._files = WebHDFS(
            host, port, user=_user(), use_https=scheme == "swebhdfs", skip_instance_cache=True
        )
        # Without a timeout, a request to a host that is down would wait until the host returns.
        self._files.session.request = partial(self._files.session.request, timeout=TIMEOUT_S)

    @property
    def url(self) -> str:
        return self._url

    def create(self) -> None:
        with _as_os_errors():
            self._files.mkdir(self._root)

    def create_folder(self, folder: str) -> None:
        with _as_os_errors():
            self._files.mkdir(self._path(folder))

    def folders(self) -> list[str]:
        return [status["pathSuffix"] for status in self._list("") if status["type"] == "directory"]

    def names(self, folder: str) -> list[str]:
        return [status["pathSuffix"] for status in self._list(folder)]

    def entries(self, folder: str) -> list[Entry]:
        return [
            Entry(status["pathSuffix"], status["size"], status["modificationTime"], status["size"])
            for status in self._list(folder)
            if status["type"] == "file"
        ]

    def _list(self, folder: str) -> list[dict[str, Any]]:
        with _as_os_errors():
            try:
                listed: list[dict[str, Any]] = self._files.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
        return listed

    def read(self, path: str, at: int = 0, size: int | None = None) -> pa.Buffer:
        with _as_os_errors():
            if not at and size is None:
                return pa.py_buffer(self._opened(path))
            length = int(self._files.info(self._path(path))["size"])
            end = length if size is None else min(length, at + size)
            if at >= end:  # HDFS refuses an offset at a file's end
                return pa.py_buffer(b"")
            return pa.py_buffer(self._opened(path, offset=at, length=end - at))

    def synced_size(self, path: str) -> int:
        with _as_os_errors():
            return int(self._files.info(self._path(path))["size"])

    def _opened(self, path: str, **part: int) -> bytes:
        # fsspec's own method returns a DataNode's error message as the bytes of the file.
        content: bytes = self._files._call("OPEN", path=self._path(path), **part).content
        return content

    def put(self, path: str, parts: Sequence[Part]) -> None:
        """Write a file under a temporary name, then rename it.

        If a request fails, the temporary file is removed, so that a delayed rename finds nothing.
        """
        folder, separator, name = path.rpartition("/")
        beside = self._path(f"{folder}{separator}.{name}.{secrets.token_hex(8)}{UNNAMED}")
        try:
            with _as_os_errors():
                _write(self._files, beside, b"".join(parts))
                _rename(self._files, beside, self._path(path))
        except BaseException:
            with suppress(OSError), _as_os_errors():
                self._files.rm(beside)
            raise

    def lock(self, folder: str) -> ExitStack:
        """Remove the lane's temporary files, so that an earlier writer cannot rename them."""
        self.remove(folder, [name for name in self.names(folder) if name.endswith(UNNAMED)])
        return ExitStack()

    def set_aside(self, path: str, to: str) -> None:
        """Rename a file; fail if the new name is taken."""
        with _as_os_errors():
            _rename(self._files, self._path(path), self._path(to))

    def remove(self, folder: str, names: Sequence[str]) -> None:
        with _as_os_errors():
            for name in names:
                self._files.rm(self._path(f"{folder}/{name}"))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def _write(files: Any, path: str, data: bytes) -> None:
    """Write a new file in one request; fsspec would create an empty file and then append to it."""
    redirect = files._call(
        "CREATE", method="put", path=path, redirect=False, overwrite="false", createflag=_SYNCED
    )
    answer = files.session.put(
        redirect.headers["Location"],
        data=data,
        headers={"Content-Type": "application/octet-stream"},
    )
    if answer.status_code != requests.codes.created:
        try:
            reason = answer.json()["RemoteException"]["message"]
        except (ValueError, KeyError, TypeError):
            answer.raise_for_status()
            raise
        raise OSError(reason)


def _rename(files: Any, path: str, to: str) -> None:
    """Rename a file, and check HDFS's result, which fsspec ignores.

    HDFS gives no reason for a failed rename. Raise FileExistsError if a file ``to`` exists.
    Otherwise ``path`` must be missing: raise FileNotFoundError.
    """
    answer = files._call("RENAME", method="put", path=path, destination=to).json()
    if answer["boolean"] is not True:
        try:
            files.info(to)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path} cannot be renamed because it was removed, for example by another writer"
                " that has opened the lane"
            ) from None
        raise FileExistsError(f"{to} already exists")


def _address(scheme: str, authority: str) -> tuple[str, int]:
    """Parse ``host:port``; return the host and the port of the NameNode's HTTP server."""
    try:
        parts = urlsplit(f"//{authority}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or "@" in authority:
        raise OptionError(
            f"The address {authority.rpartition('@')[2]!r} of a {scheme}:// URL is invalid; "
            f"write {scheme}://namenode:{PORTS[scheme]}/path, without a user: HADOOP_USER_NAME "
            "sets the user."
        )
    return f"[{host}]" if ":" in host else host, port or PORTS[scheme]


def _user() -> str:
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (KeyError, OSError) as error:
        raise SetupError(
            f"The user id {os.getuid()} has no name on this machine, but HDFS needs a user name; "
            "set HADOOP_USER_NAME."
        ) from error


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Convert exceptions of requests and fsspec to an ``OSError`` with a one-line message.

    The original messages may have full URLs, Java stack traces and several lines.
    """
    try:
        yield
    except requests.HTTPError as error:
        raise OSError(_refusal(error)) from None
    except requests.JSONDecodeError:
        raise OSError("the server that responded is not a WebHDFS server") from None
    except requests.Timeout as error:
        raise TimeoutError(f"{_server(error)} has not responded for {TIMEOUT_S} s") from None
    except requests.exceptions.ChunkedEncodingError:
        raise OSError(
            "a response broke off; the log of the DataNode that sent it has the reason"
        ) from None
    except requests.RequestException as error:
        raise OSError(f"{_server(error)} cannot be reached: {_cause(error)}") from None
    except OSError as error:
        raise type(error)(_first_line(error)) from None
    except (RuntimeError, ValueError) as error:  # fsspec's conversions of server errors
        raise OSError(_first_line(error)) from None
    except (KeyError, TypeError):
        raise OSError("the server that responded is not a WebHDFS server") from None


def _refusal(error: Any) -> str:
    """Return the message for an HTTP error status that came without a message of WebHDFS."""
    status = error.response.status_code
    kerberos = ", and Kerberos is not supported" if status == requests.codes.unauthorized else ""
    answer = f"the HTTP status {status} {error.response.reason}"
    return f"{_server(error)} responded with {answer}{kerberos}"


def _server(error: Any) -> str:
    """Return the host and port to which a failed request was sent."""
    request = error.request
    return urlsplit(request.url).netloc if request is not None else "the server"


def _cause(error: BaseException) -> str:
    """Return the message of the first error of the operating system among an error's causes."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and at.strerror:
            return at.strerror
        at = at.__cause__ or at.__context__
    return "the connection was closed"


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, without a Java stack trace."""
    return str(error).partition("\n")[0].rstrip(". ") or type(error).__name__
