"""A journal on an object store: a real server of S3's protocol, in this process."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import s3fs
from moto.server import ThreadedMotoServer
from tests.journal.samples import numbered, values_of

from headgate.control.ranges import OffsetRange
from headgate.errors import JournalError
from headgate.journal import FindingKind, Journal, LaneWriter, repair, verify
from headgate.journal.remote import ObjectStorage

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
def files(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
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
    yield files
    files.rm("bucket", recursive=True)


@pytest.fixture
def journal(files: Any) -> Journal:
    """A journal with the blocks [0, 3), [3, 10) and [10, 12) in lane 0."""
    made = Journal.open(URL, create=True)
    with made.writer(0) as writer:
        for start, until in ((0, 3), (3, 10), (10, 12)):
            writer.append(numbered(start, until))
    return made


def numbers(*ranges: range) -> list[bytes]:
    return [b"%d" % number for one in ranges for number in one]


def test_there_is_no_journal_where_none_was_made(files: Any) -> None:
    with pytest.raises(JournalError, match=r"There is no journal s3://bucket/a/orders"):
        Journal.open(URL)


def test_what_was_appended_is_there(journal: Journal) -> None:
    again = Journal.open(f"{URL}/", create=True)
    assert (again.name, again.id) == ("orders", journal.id)
    assert again.lanes() == [0]
    assert again.bounds() == {0: (0, 12)}
    assert values_of(again) == numbers(range(12))
    blocks = again.blocks(0)
    assert [(block.first, block.until) for block in blocks] == [(0, 3), (3, 10), (10, 12)]
    assert all(block.stored_bytes > 128 and block.created_ms > 0 for block in blocks)
    (batch,) = again.read(OffsetRange("orders", 0, 4, 6), ["offset", "value"])
    assert batch.to_pydict() == {"offset": [4, 5], "value": [b"4", b"5"]}
    with again.writer(0) as writer:
        assert writer.append(numbered(12, 13)) == OffsetRange("orders", 0, 12, 13)


def test_of_two_writers_one_stops(journal: Journal) -> None:
    """Nobody holds a lock; the one whose block is there first goes on."""
    one, other = journal.writer(0), journal.writer(0)
    assert one.append(numbered(12, 14)).start == 12
    for _ in range(2):
        with pytest.raises(JournalError, match=r"lane 0 of the journal s3:.* has another writer"):
            other.append(numbered(12, 15))
    assert one.append(numbered(14, 15)).start == 14
    assert values_of(journal) == numbers(range(15))


class Faulty:
    """Files of a bucket whose next put fails, before or after it is done."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.after: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def pipe_file(self, *arguments: Any, **options: Any) -> None:
        after, self.after = self.after, None
        if after == "nothing":
            raise TimeoutError("timed out")
        self._files.pipe_file(*arguments, **options)
        if after == "done":
            raise TimeoutError("timed out")
        if after == "twice":  # as a client library does whose first answer was lost
            self._files.pipe_file(*arguments, **options)


@pytest.fixture
def faulty(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Faulty:
    faulty = Faulty(getattr(journal.storage, "_files"))  # noqa: B009
    monkeypatch.setattr(journal.storage, "_files", faulty)
    return faulty


@pytest.fixture
def writer(journal: Journal, faulty: Faulty) -> LaneWriter:
    return journal.writer(0)


def test_a_put_that_was_not_done_is_not_acknowledged(
    journal: Journal, writer: LaneWriter, faulty: Faulty
) -> None:
    faulty.after = "nothing"
    with pytest.raises(JournalError, match=r"could not be made durable .*timed out"):
        writer.append(numbered(12, 14))
    assert writer.append(numbered(12, 13)).start == 12
    assert values_of(journal) == numbers(range(13))


def test_a_put_whose_answer_was_lost_is_not_acknowledged_and_goes_before_the_next(
    journal: Journal, writer: LaneWriter, faulty: Faulty
) -> None:
    faulty.after = "done"
    with pytest.raises(JournalError, match=r"could not be made durable .*timed out"):
        writer.append(numbered(12, 14))
    assert writer.append(numbered(14, 15)).start == 14
    assert values_of(journal) == numbers(range(15))


def test_a_put_whose_answer_was_lost_before_another_wrote_ends_the_writer(
    journal: Journal, writer: LaneWriter, faulty: Faulty
) -> None:
    faulty.after = "nothing"
    with pytest.raises(JournalError, match="could not be made durable"):
        writer.append(numbered(12, 14))
    assert journal.writer(0).append(numbered(12, 13)).start == 12
    with pytest.raises(JournalError, match="has another writer"):
        writer.append(numbered(13, 14))


def test_a_put_that_is_sent_twice_is_acknowledged(
    journal: Journal, writer: LaneWriter, faulty: Faulty
) -> None:
    faulty.after = "twice"
    assert writer.append(numbered(12, 14)) == OffsetRange("orders", 0, 12, 14)
    assert writer.append(numbered(14, 15)).start == 14
    assert values_of(journal) == numbers(range(15))


def test_blocks_are_pruned(journal: Journal, files: Any) -> None:
    assert journal.remove_before(0, 11) == 10
    assert journal.bounds() == {0: (10, 12)}
    assert values_of(journal) == numbers(range(10, 12))
    assert journal.remove_before(0, 12) == 12
    assert [name.rpartition("/")[2] for name in files.ls("bucket/a/orders/0")] == [
        "00000000000000000012.start"
    ]
    assert journal.bounds() == {0: (12, 12)}


def test_damage_is_found_and_declared_lost(journal: Journal, files: Any) -> None:
    path = "bucket/a/orders/0/00000000000000000003.block"
    data = files.cat_file(path)
    files.pipe_file(path, data[:-1])
    found = verify(journal)
    assert [(each.kind, each.first, each.until) for each in found.findings] == [
        (FindingKind.DAMAGED, 3, 10)
    ]
    assert repair(journal) == found.findings
    assert verify(journal).whole
    assert values_of(journal) == numbers(range(3), range(10, 12))
    (aside,) = [name for name in files.ls("bucket/a/orders/0") if name.endswith(".corrupt")]
    assert files.cat_file(aside) == data[:-1]
    files.pipe_file("bucket/a/orders/0/00000000000000000010.block", b"")
    assert [each.first for each in repair(journal)] == [10]


def test_what_the_library_raises_is_told(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    with pytest.raises(JournalError, match=r"The journal s3://bucket/a/orders cannot be opened"):
        Journal.open(URL)


def test_without_the_library_it_is_told_how_to_get_it() -> None:
    code = """
import sys
sys.modules["s3fs"] = None
from headgate.errors import SetupError
from headgate.journal import Journal
try:
    Journal.open("s3://bucket/orders")
except SetupError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'headgate[s3]'" in ended.stdout


def test_a_storage_says_where_it_is(files: Any) -> None:
    assert ObjectStorage("bucket/a/orders").url == URL
