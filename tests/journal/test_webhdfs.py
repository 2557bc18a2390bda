"""A journal in HDFS: a real NameNode and a real DataNode."""

import getpass
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.webhdfs import WebHDFS
from tests.gate.kafka.client_certificates import CERTIFICATE
from tests.journal.remote_stories import Faulty, Remote, RemoteStories
from tests.journal.samples import numbered, numbers, values_of
from tests.operate.cli.outcomes import invoke
from tests.services.hdfs import HdfsServer, hdfs_jars
from tests.services.waiting import wait_until

from headrace.errors import JournalError, OptionError, SetupError
from headrace.journal import Journal, LaneWriter, verify
from headrace.journal.layout import UNNAMED
from headrace.journal.storage import webhdfs
from headrace.journal.storage.webhdfs import WebHdfsStorage
from headrace.operate.local import Java

pytestmark = pytest.mark.nightly

BLOCK = "0/00000000000000000012.segment"


@pytest.fixture(scope="module")
def server(java: Java) -> Iterator[HdfsServer]:
    with HdfsServer(java, hdfs_jars(java)) as running:
        yield running


@pytest.fixture
def remote(server: HdfsServer) -> Iterator[Remote]:
    files = WebHDFS("127.0.0.1", server.port, user=getpass.getuser(), skip_instance_cache=True)
    url = f"webhdfs://{server.authority}/a/orders"
    yield Remote(url, files, "/a/orders", step="_call", op="RENAME")
    files.rm("/a", recursive=True)


def unnamed(remote: Remote) -> list[str]:
    return [name for name in remote.names() if name.endswith(UNNAMED)]


class TestHdfs(RemoteStories):
    """Tests of every place that is reached over a network, and of HDFS."""

    def test_what_a_crash_left_between_writing_and_renaming_is_ignored_until_it_is_removed(
        self, remote: Remote, journal: Journal
    ) -> None:
        remote.files.pipe_file(remote.path(f".block.1234{UNNAMED}"), b"a whole block")
        assert journal.bounds() == {0: (0, 12)}
        assert values_of(journal) == numbers(range(12))
        assert verify(journal).findings == ()
        with journal.writer(0) as writer:
            assert unnamed(remote) == []
            assert writer.append(numbered(12, 13)).start == 12

    def test_a_block_that_another_writer_swept_away_is_not_taken_for_renamed(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = getattr(webhdfs, "_write")  # noqa: B009

        def overtaken(*arguments: Any) -> None:
            write(*arguments)
            journal.writer(0).close()

        monkeypatch.setattr(webhdfs, "_write", overtaken)
        with pytest.raises(OSError, match="another writer that has opened the lane"):
            journal.storage.put(BLOCK, [b"a whole block"])
        assert journal.bounds() == {0: (0, 12)}

    def test_what_got_no_name_is_removed_before_a_late_request_can_give_it_one(
        self, remote: Remote, writer: LaneWriter, faulty: Faulty
    ) -> None:
        faulty.after = "nothing"
        with pytest.raises(JournalError, match="could not be made durable"):
            writer.append(numbered(12, 14))
        assert unnamed(remote) == []

    def test_every_block_is_synced_before_it_is_acknowledged(
        self, server: HdfsServer, journal: Journal
    ) -> None:
        with journal.writer(0) as writer:
            before = server.syncs()
            for end in (13, 14, 15):
                writer.append(numbered(end - 1, end))
            wait_until(lambda: server.syncs() == before + 3)

    def test_a_block_that_hdfs_cannot_read_is_not_taken_for_one_that_is_damaged(
        self, server: HdfsServer, journal: Journal
    ) -> None:
        server.damage_blocks()
        with pytest.raises(JournalError, match="cannot be verified: a response broke off;"):
            verify(journal)

    def test_what_hdfs_refuses_is_told(
        self, remote: Remote, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HADOOP_USER_NAME", "alice")
        other = Journal.open(remote.url)
        with pytest.raises(JournalError, match="Permission denied: user=alice") as raised:
            other.writer(1)
        assert "\n" not in str(raised.value)

    def test_what_a_datanode_refuses_is_told(
        self, remote: Remote, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headrace.journal.storage.webhdfs.secrets.token_hex", lambda _: "same")
        beside = f".{BLOCK.rpartition('/')[2]}.same{UNNAMED}"
        remote.files.pipe_file(remote.path(beside), b"a whole block")
        with pytest.raises(OSError, match="already exists") as raised:
            journal.storage.put(BLOCK, [b"another"])
        assert "\n" not in str(raised.value)
        assert len(remote.names()) == 3  # what could not be written is removed

    def test_the_same_journal_is_there_over_tls(
        self,
        server: HdfsServer,
        journal: Journal,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        secure = f"swebhdfs://127.0.0.1:{server.tls_port}/a/orders"
        with pytest.raises(JournalError, match="certificate verify failed"):
            Journal.open(secure)
        (tmp_path / "authority.pem").write_text(CERTIFICATE)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", f"{tmp_path}/authority.pem")
        with Journal.open(secure).writer(0) as writer:
            assert writer.append(numbered(12, 13)).start == 12
        assert values_of(Journal.open(secure)) == numbers(range(13))
        assert journal.bounds() == {0: (0, 13)}

    def test_commands_look_after_it(self, remote: Remote, journal: Journal) -> None:
        listed = invoke("", "journal", "ls", remote.url, "--json")
        lane = json.loads(listed.stdout)
        assert (lane["start"], lane["until"]) == (0, 12)
        assert invoke("", "journal", "verify", remote.url).exit_code == 0
        remote.files.pipe_file(remote.path("00000000000000000003.segment"), b"damaged")
        assert invoke("", "journal", "verify", remote.url).exit_code == 4
        assert invoke("", "journal", "repair", remote.url).exit_code == 0
        assert verify(journal).whole


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("webhdfs://me:secret@host:9870/orders", "The address 'host:9870' of a webhdfs:// URL"),
        ("webhdfs://me:secret@host", "The address 'host' of a webhdfs:// URL"),
        ("swebhdfs://host:port/orders", "write swebhdfs://namenode:9871/path"),
        ("webhdfs:///orders", "The address '' of a webhdfs:// URL"),
        ("webhdfs://host:9870", "The journal's name ''"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url: str, says: str) -> None:
    with pytest.raises(OptionError, match=says) as raised:
        Journal.open(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("place", "url"),
    [
        (("webhdfs", "host/orders"), "http://host:9870/webhdfs/v1"),
        (("swebhdfs", "host/orders"), "https://host:9871/webhdfs/v1"),
        (("webhdfs", "[::1]:1/a/orders"), "http://[::1]:1/webhdfs/v1"),
    ],
)
def test_the_namenode_is_asked_where_hadoop_would(place: tuple[str, str], url: str) -> None:
    storage = WebHdfsStorage(*place)
    assert getattr(storage, "_files").url == url  # noqa: B009
    assert storage.url == "://".join(place)


def test_a_namenode_that_is_down_is_told_in_one_sentence() -> None:
    with pytest.raises(JournalError) as raised:
        Journal.open("webhdfs://127.0.0.1:1/a/orders")
    assert str(raised.value) == (
        "The journal webhdfs://127.0.0.1:1/a/orders cannot be opened: 127.0.0.1:1 cannot be "
        "reached: Connection refused; correct this, then try again: no acknowledged record is lost."
    )


def test_a_namenode_that_says_nothing_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhdfs, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(JournalError, match=f"127.0.0.1:{port} has not responded for 0.1 s"):
            Journal.open(f"webhdfs://127.0.0.1:{port}/orders")


def refusal(exception: str) -> str:
    """An error as Hadoop tells it."""
    words = {"exception": exception, "message": "Not now.\n\tat org.apache.hadoop.hdfs.Server"}
    return json.dumps({"RemoteException": words})


@contextmanager
def answering(status: int, body: str, datanode: tuple[int, str] = (500, "")) -> Iterator[str]:
    """The address of a NameNode that sends whoever opens a file to a DataNode."""

    class Canned(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/datanode":
                self.answer(*datanode)
            elif "op=OPEN" in self.path:
                self.answer(307, "")
            else:
                self.answer(status, body)

        def answer(self, status: int, body: str) -> None:
            self.send_response(status)
            self.send_header("Location", f"http://{self.headers['Host']}/datanode")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Canned) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, "<html>", "opened: the server that responded is not a WebHDFS server;"),
        (200, "[]", "opened: the server that responded is not a WebHDFS server;"),
        (401, "<html>", r"responded with the HTTP status 401 .*, and Kerberos is not supported;"),
        (403, refusal("StandbyException"), "opened: Not now;"),
        (502, "<html>", r"responded with the HTTP status 502 Bad Gateway;"),
    ],
)
def test_what_is_no_answer_of_a_namenode_is_told(status: int, body: str, says: str) -> None:
    with answering(status, body) as address, pytest.raises(JournalError, match=says):
        Journal.open(f"webhdfs://{address}/orders")


def test_what_a_datanode_says_in_place_of_a_file_is_not_taken_for_it() -> None:
    there = json.dumps({"FileStatus": {"type": "FILE", "length": 1000}})
    with answering(200, there, datanode=(500, refusal("IOException"))) as address:
        storage = WebHdfsStorage("webhdfs", f"{address}/orders")
        with pytest.raises(OSError, match=r"^Not now$"):
            storage.read(BLOCK)


def test_a_user_without_a_name_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError

    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    monkeypatch.setattr(getpass, "getuser", nameless)
    with pytest.raises(SetupError, match="set HADOOP_USER_NAME"):
        Journal.open("webhdfs://host/orders")


def test_without_the_packages_it_is_told_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    monkeypatch.delitem(sys.modules, "headrace.journal.storage.webhdfs")
    with pytest.raises(SetupError, match=re.escape("pip install 'headrace[hdfs]'")):
        Journal.open("webhdfs://host/orders")
