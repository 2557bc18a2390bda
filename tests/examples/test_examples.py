"""The examples, as a user would run them."""

import gc
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psycopg
import pyarrow.dataset as pads
import pytest
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession
from pytest import MonkeyPatch
from tests.docs.pages import blocks
from tests.operate.cli.outcomes import invoke
from tests.services.connector import jdbc_jars
from tests.services.kafka import Topic, TopicFactory, Topics, leaders
from tests.services.lakes import jars_at_hand, older_spark, packages_in
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import postgresql_server
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Verdict
from headrace.journal import Journal
from headrace.operate.local import ensure_java

pytestmark = pytest.mark.nightly

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


def send(topic: Topic, run_here: Callable[..., str]) -> None:
    """Five orders and a record that is none, as the page has them sent."""
    run_here("send_orders.py", topic.bootstrap_servers, topic.name)


def printed_on_the_page(command: str) -> list[str]:
    """Return the page's output of a command, line by line, without values that differ by run."""
    (shown,) = (
        shown
        for block in blocks(EXAMPLES.parent / "docs/getting-started.md", "console")
        for shown in block.text.split("$ ")
        if shown.startswith(f"{command}\n")
    )
    return without_figures(shown.partition("\n")[2])


def without_figures(text: str) -> list[str]:
    """Lines without keys, and without ages, by whose width the rest of a row is shortened."""
    text = re.sub(r"\b[0-9a-f]{8}\b", "KEY", text)
    text = re.sub(r"( +[\d.]+ (ms|s|min|h))+ .*", " AGE", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_orders_go_into_postgresql_past_one_that_is_none_and_one_that_is_refused(
    topics: Topics, tmp_path: Path, run_here: Callable[..., str], monkeypatch: MonkeyPatch
) -> None:
    """And the commands print what the page shows of the first run."""
    topics.admin.create_topics([NewTopic("orders", 3, 1)])["orders"].result(30)
    orders = Topic("orders", 3, topics.bootstrap_servers, topics.producer)
    wait_until(lambda: leaders(topics.admin, "orders") == 3)
    # Spark resolves relative paths in the folder that it was started in.
    program = (EXAMPLES / "orders_into_postgresql.py").read_text()
    (tmp_path / "here.py").write_text(program.replace('"checkpoints/', f'"{tmp_path}/'))
    with postgresql_server() as server:
        monkeypatch.setenv("HEADRACE_LEDGER", server.url)
        run = partial(run_here, str(tmp_path / "here.py"), orders.bootstrap_servers, orders.name)
        send(orders, run_here)
        run()
        for command in ("failures", "dead-letters list", "verify"):
            lines = without_figures(invoke(server.url, *command.split(), width=80).output)
            on_the_page = printed_on_the_page(f"headrace {command}")
            assert lines[: len(on_the_page)] == on_the_page
        status = " ".join(invoke(server.url, "status").output.replace("│", " ").split())
        assert "6 records taken, with 1 dead letter, none left." in status
        orders.produce(order(3), *map(order, range(6, 40)))  # there is an order 3
        printed = run()
        with psycopg.connect(server.url) as connection:
            kept = connection.execute("SELECT id FROM orders ORDER BY id").fetchall()
        with Ledger.open(server.url, create=False) as ledger:
            _none, refused = (each.letter for each in ledger.dead_letters.oldest("orders"))
            assert ledger.proofs.verify("orders").verdict is Verdict.PROVEN
    assert [number for (number,) in kept] == list(range(1, 40))
    assert sum(int(line.split()[-1]) for line in printed.splitlines()) == 39
    assert refused.value == order(3)
    assert "UniqueViolation" in refused.error.error_class + refused.error.message


def test_orders_go_into_delta_lake_past_one_that_is_none(
    topic: TopicFactory, tmp_path: Path, run_here: Callable[..., str], monkeypatch: MonkeyPatch
) -> None:
    """In a process with the Spark that Delta is built for, which takes most of the time.

    Its jars are those of the cache.
    """
    orders = topic(1)
    send(orders, run_here)
    conf = " ".join(f"--conf {name}={value}" for name, value in jars_at_hand(tmp_path).items())
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{conf} {os.environ['PYSPARK_SUBMIT_ARGS']}")
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "orders_into_delta.py", orders.bootstrap_servers, orders.name],
        cwd=tmp_path,
        env=os.environ | older_spark(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    assert sum(map(int, re.findall(r"^\|[-\d: ]+\|\s*(\d+)\|$", ended.stdout, re.MULTILINE))) == 5
    rows = pads.dataset(str(tmp_path / "lake/orders")).to_table(["id"])
    assert sorted(rows.column("id").to_pylist()) == [1, 2, 3, 4, 5]
    with Ledger.open(f"sqlite:///{tmp_path}/headrace.db", create=False) as ledger:
        (letter,) = ledger.dead_letters.oldest("orders")
        assert letter.letter.value == b"no order"


def test_orders_go_through_the_jdbc_writer_each_once(
    topic: TopicFactory, tmp_path: Path, run_here: Callable[..., str]
) -> None:
    """In a process that has the driver; a second run finds nothing, and no table of a batch."""
    orders = topic(1)
    send(orders, run_here)
    settings = packages_in(jdbc_jars(ensure_java()), tmp_path)
    conf = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    program = str(EXAMPLES / "orders_by_jdbc.py")
    # The server has no port of its own, and the driver knows no other way.
    setting = "ignore_startup_parameters = extra_float_digits"
    with postgresql_server() as server, PgBouncer(server.url, "session", setting) as pooler:
        environment = os.environ | {
            "HEADRACE_LEDGER": pooler.url("postgres"),
            "PYSPARK_SUBMIT_ARGS": f"{conf} {os.environ['PYSPARK_SUBMIT_ARGS']}",
        }
        for _ in range(2):
            ended = subprocess.run(
                [sys.executable, program, orders.bootstrap_servers, orders.name],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ended.returncode == 0, ended.stderr[-3_000:]
            assert ended.stdout.splitlines()[-1] == "5 orders"
        with psycopg.connect(server.url) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables").fetchall()
    assert not [name for (name,) in tables if name.startswith("staging")]


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
