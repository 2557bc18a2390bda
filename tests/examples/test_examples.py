"""The examples, as a user would run them."""

import gc
import json
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.ledger.servers import postgresql_server
from tests.services.kafka import TopicFactory
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.journal import Journal
from headrace.ledger import Ledger

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_here(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs an example in this process, where there is a Spark already; returns what it prints."""

    def run_it(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        gc.collect()  # the end of a program closes the connections of its engine
        assert spark.range(1).count() == 1  # it is left running
        return capsys.readouterr().out

    return run_it


def order(number: int) -> bytes:
    return json.dumps({"id": number, "customer": f"c{number}", "amount": 1.5}).encode()


def test_gated_orders_go_to_parquet_each_once(
    topic: TopicFactory, tmp_path: Path, run_here: Callable[..., str]
) -> None:
    orders = topic(2)
    orders.produce(*map(order, range(300)), partition=0)
    orders.produce(*map(order, range(300, 400)), partition=1)
    printed = run_here("gated_orders.py", orders.bootstrap_servers, orders.name, str(tmp_path))
    assert sum(int(line.split()[2]) for line in printed.splitlines()) == 400
    assert (tmp_path / "headrace.db").exists()
    assert len(list((tmp_path / "orders").glob("batch=*"))) == len(printed.splitlines()) > 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_orders_go_into_postgresql_past_one_that_it_refuses(
    topic: TopicFactory, tmp_path: Path, run_here: Callable[..., str]
) -> None:
    orders = topic(1)
    refused = json.dumps({"id": 7, "customer": None, "amount": 1.0}).encode()
    orders.produce(*map(order, range(7)), refused, *map(order, range(8, 40)))
    with postgresql_server() as server:
        run_here(
            "orders_into_postgresql.py",
            *(orders.bootstrap_servers, orders.name, server.url, str(tmp_path / "checkpoint")),
        )
        with psycopg.connect(server.url) as connection:
            kept = connection.execute("SELECT id FROM orders ORDER BY id").fetchall()
        with Ledger.open(server.url, create=False) as ledger:
            (letter,) = ledger.dead_letters.oldest("orders")
    assert [number for (number,) in kept] == [n for n in range(40) if n != 7]
    assert (letter.letter.offset, letter.letter.value) == (7, refused)
    assert "NotNullViolation" in letter.letter.error.error_class + letter.letter.error.message


def test_only_the_format_changes(
    topic: TopicFactory, tmp_path: Path, run_here: Callable[..., str]
) -> None:
    records = topic(1)
    records.produce(*[b"x"] * 70)
    printed = run_here("only_the_format.py", records.bootstrap_servers, records.name, str(tmp_path))
    assert printed.strip() == "70 records"


def test_a_bounded_read_begins_at_a_time(topic: TopicFactory, run_here: Callable[..., str]) -> None:
    records = topic(1)
    now = datetime.now(UTC)
    hour_ago, minute_ago = now - timedelta(hours=1), now - timedelta(minutes=1)
    records.produce(b"old", timestamp_ms=int(hour_ago.timestamp() * 1000))
    records.produce(b"young", b"youth")
    since = minute_ago.isoformat()
    printed = run_here("bounded_read.py", records.bootstrap_servers, records.name, "--since", since)
    assert printed.strip() == "partition 0: 2 records of 5 bytes"


def test_two_gates_are_joined(
    topic: TopicFactory, tmp_path: Path, run_here: Callable[..., str]
) -> None:
    orders, payments = topic(1), topic(1)
    orders.produce(b"tea", key=b"7")
    orders.produce(b"milk", key=b"8")
    payments.produce(b"paid", key=b"8")
    printed = run_here(
        "two_gates.py", orders.bootstrap_servers, orders.name, payments.name, str(tmp_path)
    )
    assert printed.strip() == "8: b'milk' b'paid'"


def test_a_file_is_followed_over_a_crash_and_no_line_is_lost_or_twice(tmp_path: Path) -> None:
    log, journal = tmp_path / "app.log", tmp_path / "app-log"
    command = [sys.executable, str(EXAMPLES / "follow_a_file.py"), str(log), str(journal)]

    def values() -> list[bytes]:
        if not (journal / "journal.json").exists():
            return []
        opened = Journal.open(str(journal))
        ranges = [OffsetRange(opened.name, n, *bounds) for n, bounds in opened.bounds().items()]
        batches = [batch for r in ranges for batch in opened.read(r, ["value"])]
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    def all_are_there(written: list[bytes]) -> bool:
        return values() == written

    written: list[bytes] = []
    for ending in (signal.SIGKILL, signal.SIGTERM):
        with log.open("ab") as file:
            more = [b"line %d" % (len(written) + number) for number in range(100)]
            file.writelines(line + b"\n" for line in more)
            file.write(b"not whole")
        written += more
        with subprocess.Popen(command) as process:
            wait_until(partial(all_are_there, written))
            process.send_signal(ending)
        log.write_bytes(log.read_bytes().removesuffix(b"not whole"))
    assert process.returncode == 0
