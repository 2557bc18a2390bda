"""A journal on an object store: real servers of S3's protocol and of Azure's."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.journal.remote_stories import Remote, RemoteStories
from tests.services import object_stores
from tests.services.object_stores import ObjectServer

from headrace.errors import JournalError
from headrace.journal import Journal
from headrace.journal.storage.object_store import ObjectStorage

pytestmark = pytest.mark.nightly

SERVERS: dict[str, Callable[[], AbstractContextManager[ObjectServer]]] = {
    "s3": object_stores.s3,
    "az": object_stores.azure,
}

PLACE = "bucket/a/orders"


class Files:
    """The bucket, for whoever looks into it or damages it: as much of fsspec as tests need."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def ls(self, path: str, *, detail: bool) -> list[str]:
        assert not detail
        listed = self._store.list_with_delimiter(_inside(path))["objects"]
        return [f"bucket/{each['path']}" for each in listed]

    def rm(self, path: str, *, recursive: bool = False) -> None:
        if not recursive:
            self._store.delete(_inside(path))
            return
        found = [each["path"] for batch in self._store.list(_inside(path)) for each in batch]
        for each in found:
            self._store.delete(each)

    def cat_file(self, path: str) -> bytes:
        return bytes(self._store.get(_inside(path)).bytes())

    def pipe_file(self, path: str, data: bytes) -> None:
        self._store.put(_inside(path), data)


def _inside(path: str) -> str:
    return path.removeprefix("bucket").strip("/")


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    with SERVERS[request.param]() as running:
        yield running


@pytest.fixture
def remote(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """An empty bucket, and the environment that leads to it."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    store = getattr(ObjectStorage(server.scheme, "bucket/"), "_files")  # noqa: B009
    files = Files(store)
    yield Remote(f"{server.scheme}://{PLACE}", files, PLACE, step="put")
    files.rm("bucket", recursive=True)


class TestObjectStore(RemoteStories):
    """Tests of every place that is reached over a network."""


def test_what_the_library_raises_is_told(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as nowhere:
        nowhere.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        with pytest.raises(
            JournalError, match="The journal s3://bucket/a/orders cannot be"
        ) as told:
            Journal.open("s3://bucket/a/orders")
    assert "secret" not in str(told.value)
    assert "\n" not in str(told.value)


def test_without_the_library_it_is_told_how_to_get_it() -> None:
    code = """
import sys
sys.modules["obstore"] = None
from headrace.errors import SetupError
from headrace.journal import Journal
try:
    Journal.open("s3://bucket/orders")
except SetupError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'headrace[object-store]'" in ended.stdout
