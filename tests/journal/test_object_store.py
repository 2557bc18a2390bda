"""A journal on an object store: a real server of S3's protocol, in this process."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import s3fs
from moto.server import ThreadedMotoServer
from tests.journal.remote_stories import Remote, RemoteStories

from headrace.errors import JournalError
from headrace.journal import Journal

URL = "s3://bucket/a/orders"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def remote(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """An empty bucket, and the environment that leads to it."""
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    files = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
    files.mkdir("bucket")
    yield Remote(URL, files, "bucket/a/orders", step="pipe_file")
    files.rm("bucket", recursive=True)


class TestObjectStore(RemoteStories):
    """What holds of every place that is reached over a network."""


def test_what_the_library_raises_is_told(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    with pytest.raises(JournalError, match=r"The journal s3://bucket/a/orders cannot be opened"):
        Journal.open(URL)


@pytest.mark.integration
def test_without_the_library_it_is_told_how_to_get_it() -> None:
    code = """
import sys
sys.modules["s3fs"] = None
from headrace.errors import SetupError
from headrace.journal import Journal
try:
    Journal.open("s3://bucket/orders")
except SetupError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'headrace[s3]'" in ended.stdout
