import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.gate.ledger.conftest import Ordinary
from tests.gate.ledger.samples import batch_number

from headrace.errors import LedgerError, LedgerSchemaError
from headrace.gate.ledger.connection import Timeouts
from headrace.gate.ledger.database import Database
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.sqlite import LOG_BYTES

SOON = Timeouts(lock_s=0.05)

FULL = 2
"""SQLite's number of ``PRAGMA synchronous = FULL``."""


def begin_batches(ledger: Ledger, count: int) -> None:
    ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
    for number in range(count):
        ledger.batches.begin(batch_number(number))


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_file_keeps_what_is_committed_though_the_power_fails(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url).close()
    database = Database(url, read_only=False, timeouts=SOON)
    with database.writing() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == FULL
    database.close()


def test_the_log_that_a_readers_snapshot_made_long_is_cut_back(tmp_path: Path) -> None:
    path, log = tmp_path / "ledger.db", tmp_path / "ledger.db-wal"
    with Ledger.open(f"sqlite:///{path}") as ledger, closing(sqlite3.connect(path)) as reader:
        begin_batches(ledger, 1)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM batch").fetchall()
        begin_batches(ledger, 150)
        assert log.stat().st_size > LOG_BYTES
        assert ledger.shorten_log() > LOG_BYTES
        reader.rollback()
        begin_batches(ledger, 151)
        assert log.stat().st_size <= LOG_BYTES
        assert ledger.shorten_log() == log.stat().st_size == 0


def test_readers_see_that_a_file_is_in_use_after_a_transaction_was_lent(tmp_path: Path) -> None:
    """By its log, which SQLite deletes with the last connection; else they read past the writer."""
    url, log = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "ledger.db-wal"
    Ledger.open(url).close()
    database = Database(url, read_only=False, timeouts=SOON)
    for name in ("tea", "milk"):
        with database.lend(lambda _connection: None) as connection:
            connection.exec_driver_sql(f"CREATE TABLE {name} (a INTEGER)")
        assert log.exists()
    database.close()
    assert not log.exists()


def test_a_connection_in_use_while_its_ledger_is_closed_is_closed_too(tmp_path: Path) -> None:
    """As a listener's thread has one that still reports a batch when a program ends."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url).close()
    database = Database(url, read_only=False, timeouts=SOON)
    with database.reading() as connection:
        in_use = connection.connection.dbapi_connection
        assert in_use is not None
        database.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        in_use.cursor()


@pytest.mark.parametrize("name", ["a b.db", "100%.db", "a#b.db", "größe.db"])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    for create in (True, False):
        Ledger.open(f"sqlite:///{tmp_path}/{name}", create=create).close()
    assert list(files(tmp_path)) == [name]


@pytest.mark.parametrize(
    ("name", "create", "reason"),
    [
        (".", True, r"is a folder; name a file in it"),
        ("missing/ledger.db", True, "its folder does not exist"),
        ("missing/ledger.db", False, "its folder does not exist"),
        ("ledger.db", False, "There is no ledger .*/ledger.db;"),
        ("x" * 300, True, "File name too long"),
    ],
)
def test_where_there_can_be_no_ledger_or_is_none_to_read_nothing_is_made(
    tmp_path: Path, name: str, create: bool, reason: str
) -> None:
    with pytest.raises(LedgerError, match=reason):
        Ledger.open(f"sqlite:///{tmp_path}/{name}", create=create)
    assert files(tmp_path) == {}


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Buy milk. " * 1_000)
    for create in (True, False):
        with pytest.raises(LedgerError, match="is a file that is not a SQLite database"):
            Ledger.open(f"sqlite:///{path}", create=create)
    assert files(tmp_path) == {"notes.txt": b"Buy milk. " * 1_000}


def test_somebody_elses_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "rates.db")) as other:
        other.execute("CREATE TABLE rate (currency TEXT)")
    before = files(tmp_path)
    with pytest.raises(LedgerSchemaError, match="has a table 'rate' that Headrace did not create"):
        Ledger.open(f"sqlite:///{tmp_path}/rates.db")
    assert files(tmp_path) == before


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(f"sqlite:///{path}") as ledger:
        begin_batches(ledger, 100)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(LedgerError, match="is damaged; restore it from a backup"):
        Ledger.open(f"sqlite:///{path}")


def test_a_file_that_another_program_keeps_locked_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with (
        Ledger.open(f"sqlite:///{path}", timeouts=SOON) as ledger,
        closing(sqlite3.connect(path)) as other,
    ):
        begin_batches(ledger, 1)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="has been locked by another process"):
            ledger.batches.begin(batch_number(1))
        assert len(ledger.batches.newest("orders")) == 1
        other.rollback()
        ledger.batches.begin(batch_number(1))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_deleted_or_replaced_is_reported_and_not_recreated(
    tmp_path: Path, replaced: bool
) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(f"sqlite:///{path}") as ledger:
        begin_batches(ledger, 1)
        for name in files(tmp_path):
            (tmp_path / name).unlink()
        if replaced:
            Ledger.open(f"sqlite:///{path}").close()
        for _ in range(2):
            with pytest.raises(LedgerError, match="was deleted or replaced while it was open"):
                ledger.batches.begin(batch_number(1))
            with pytest.raises(LedgerError, match="was deleted or replaced while it was open"):
                ledger.gates.all()
    assert path.exists() == replaced


def test_a_folder_that_cannot_be_written_is_reported(open_folder: Path, ordinary: Ordinary) -> None:
    open_folder.chmod(0o555)
    with (
        ordinary(),
        pytest.raises(LedgerError, match="cannot be opened; let this user read and write"),
    ):
        Ledger.open(f"sqlite:///{open_folder}/ledger.db")


def test_a_file_that_cannot_be_written_is_reported(open_folder: Path, ordinary: Ordinary) -> None:
    path = open_folder / "ledger.db"
    Ledger.open(f"sqlite:///{path}").close()
    path.chmod(0o444)
    open_folder.chmod(0o555)
    with ordinary(), pytest.raises(LedgerError, match="cannot be written; let this user write"):
        Ledger.open(f"sqlite:///{path}")


def test_a_file_that_cannot_be_read_is_reported(open_folder: Path, ordinary: Ordinary) -> None:
    path = open_folder / "ledger.db"
    Ledger.open(f"sqlite:///{path}").close()
    path.chmod(0)
    for create in (True, False):
        with ordinary(), pytest.raises(LedgerError, match="cannot be opened; let this user read"):
            Ledger.open(f"sqlite:///{path}", create=create)


def test_reading_leaves_no_file_behind(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Ledger.open(url) as writer:
        begin_batches(writer, 1)
    before = files(tmp_path)
    with Ledger.open(url, create=False) as ledger:
        assert len(ledger.batches.newest("orders")) == 1
    assert files(tmp_path) == before


def test_a_reader_without_the_right_to_write_sees_what_is_being_written(
    open_folder: Path, ordinary: Ordinary
) -> None:
    url = f"sqlite:///{open_folder}/ledger.db"
    with Ledger.open(url) as writer:
        begin_batches(writer, 1)
    open_folder.chmod(0o555)
    with ordinary():
        reader = Ledger.open(url, create=False)
        assert len(reader.batches.newest("orders")) == 1
    with Ledger.open(url) as writer:
        writer.batches.begin(batch_number(1))
        with ordinary():
            assert len(reader.batches.newest("orders")) == 2
    with ordinary(), reader:
        assert len(reader.batches.newest("orders")) == 2


def test_a_reader_without_the_right_to_write_sees_what_a_killed_writer_left(
    open_folder: Path, tmp_path: Path, ordinary: Ordinary
) -> None:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db") as writer:
        begin_batches(writer, 3)
        for name in files(tmp_path):
            shutil.copy(tmp_path / name, open_folder)
    assert sorted(files(open_folder)) == ["ledger.db", "ledger.db-shm", "ledger.db-wal"]
    open_folder.chmod(0o555)
    with (
        ordinary(),
        Ledger.open(f"sqlite:///{open_folder}/ledger.db", create=False) as ledger,
    ):
        assert len(ledger.batches.newest("orders")) == 3
