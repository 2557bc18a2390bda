"""Exceptions that drivers and Spark really raise when a sink is away, and when it is not.

Disks that are full or read-only are mounted, where this user may do so.
"""

import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pytest
import requests
import sqlalchemy
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from tests.services.kafka import Topics
from tests.services.postgresql import PostgresqlServer, postgresql_server

from headrace.gate.execution.verdicts import no_connection, sink_is_away
from headrace.operate.local import Java, KafkaBroker, kafka_server_jars
from headrace.operate.local.servers import free_ports

pytestmark = pytest.mark.nightly

Rows = Iterator[Any]


def raised(call: Callable[[], object]) -> Exception:
    """Return the exception that the call raises; a test that fails shows it."""
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def assert_away(*calls: Callable[[], object]) -> None:
    for call in calls:
        error = raised(call)
        assert sink_is_away(error), error


def assert_not_away(*calls: Callable[[], object]) -> None:
    for call in calls:
        error = raised(call)
        assert not sink_is_away(error), error


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    with postgresql_server() as running:
        with psycopg.connect(running.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
            connection.execute("CREATE TABLE locked ()")
            connection.execute("CREATE ROLE one CONNECTION LIMIT 1 LOGIN")
        yield running


def data_folder(server: PostgresqlServer) -> Path:
    with psycopg.connect(server.url) as connection:
        found = connection.execute("SHOW data_directory").fetchone()
    assert found is not None
    return Path(found[0])


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(2).repartition(1)


def tried_in_a_task(rows: DataFrame, url: str, text: str) -> Callable[[], None]:
    def write(_rows: Rows) -> None:
        with psycopg.connect(url) as connection:
            connection.execute(text.encode())

    return lambda: rows.foreachPartition(write)


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_postgresql_that_is_shut_down_is_away(
    server: PostgresqlServer, rows: DataFrame, how: str
) -> None:
    engine = sqlalchemy.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
    text = "SELECT 1"
    with psycopg.connect(server.url) as connection, engine.connect() as pooled:
        server.stop(how)
        try:
            assert_away(
                lambda: connection.execute(text.encode()),
                lambda: pooled.execute(sqlalchemy.text(text)),
                lambda: psycopg.connect(server.url),
                engine.connect,
                tried_in_a_task(rows, server.url, text),
            )
        finally:
            engine.dispose(close=False)
            server.start()


def test_a_postgresql_that_does_not_answer_is_away(server: PostgresqlServer) -> None:
    postmaster = int((data_folder(server) / "postmaster.pid").read_text().splitlines()[0])
    os.kill(postmaster, signal.SIGSTOP)
    try:
        assert_away(lambda: psycopg.connect(server.url, connect_timeout=2))
    finally:
        os.kill(postmaster, signal.SIGCONT)


def test_a_postgresql_that_takes_no_connection_or_no_write_is_away(
    server: PostgresqlServer, rows: DataFrame
) -> None:
    as_one = server.url.replace("postgres:@", "one:@")
    with psycopg.connect(as_one):
        assert_away(lambda: psycopg.connect(as_one), tried_in_a_task(rows, as_one, "SELECT 1"))
    insert = "INSERT INTO orders VALUES (7)"
    read_only = f"{server.url}&options=-c%20default_transaction_read_only%3Don"
    with psycopg.connect(read_only) as connection:
        assert_away(
            lambda: connection.execute(insert.encode()), tried_in_a_task(rows, read_only, insert)
        )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM nothing",
        "INSERT INTO orders VALUES (1), (1)",
        "SELECT 'x'::int",
        "SET statement_timeout = 10; SELECT pg_sleep(60)",
        "SET lock_timeout = 10; LOCK TABLE locked",
    ],
)
def test_a_postgresql_that_refuses_is_not_away(
    server: PostgresqlServer, rows: DataFrame, text: str
) -> None:
    engine = sqlalchemy.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
    with (
        psycopg.connect(server.url) as locking,
        psycopg.connect(server.url) as connection,
        engine.connect() as pooled,
    ):
        locking.execute("LOCK TABLE locked")
        assert_not_away(
            lambda: connection.execute(text.encode()),
            lambda: pooled.exec_driver_sql(text),
            tried_in_a_task(rows, server.url, text),
        )
    engine.dispose()


class Answers(BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_GET(self) -> None:
        self.send_error(int(self.path[1:]))

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def http() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def get_by_requests(url: str) -> None:
    requests.get(url, timeout=5).raise_for_status()


def get_by_httpx(url: str) -> None:
    httpx.get(url, timeout=5).raise_for_status()


def get_by_urllib(url: str) -> None:
    try:
        urllib.request.urlopen(url, timeout=5)  # noqa: S310  (of http alone)
    except urllib.error.HTTPError as error:
        error.close()
        raise


CLIENTS: Final = [get_by_requests, get_by_httpx, get_by_urllib]


def got_in_a_task(rows: DataFrame, get: Callable[[str], None], url: str) -> Callable[[], None]:
    return lambda: rows.foreachPartition(lambda _rows: get(url))


@pytest.mark.parametrize("get", CLIENTS)
def test_an_http_service_is_away_by_its_status_or_where_nobody_listens(
    get: Callable[[str], None], http: str, rows: DataFrame
) -> None:
    (nobody,) = free_ports(1)
    gone = f"http://127.0.0.1:{nobody}/"
    for url in (f"{http}/503", f"{http}/429", gone, "http://orders.invalid/"):
        assert_away(lambda: get(url))  # noqa: B023  (called at once)
    assert_away(*[got_in_a_task(rows, get, url) for url in (f"{http}/503", gone)])
    for status in (400, 401, 403, 404, 413, 422, 500):
        assert_not_away(lambda: get(f"{http}/{status}"))  # noqa: B023
    assert_not_away(got_in_a_task(rows, get, f"{http}/413"))


def test_an_http_service_that_does_not_answer_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert_away(
            lambda: requests.get(url, timeout=0.1),
            lambda: httpx.get(url, timeout=0.1),
            lambda: urllib.request.urlopen(url, timeout=0.1),
        )


def test_a_kafka_broker_that_is_stopped_is_away(java: Java, rows: DataFrame) -> None:
    values = rows.selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS value")
    with KafkaBroker(java, kafka_server_jars(java)) as broker:
        topic = Topics(broker.bootstrap_servers).create(1)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "message.timeout.ms": 5_000,  # on a busy machine the first answer takes a while
                "log_level": 0,
            }
        )

        def send(_rows: object = None) -> None:
            failed: list[Any] = []
            producer.produce(topic.name, b"x", on_delivery=lambda error, _: failed.append(error))
            producer.flush(30)
            if failed[0] is not None:
                raise KafkaException(failed[0])

        def write(servers: str, block_ms: int = 2_000) -> None:
            options = {
                "topic": topic.name,
                "kafka.bootstrap.servers": servers,
                "kafka.max.block.ms": str(block_ms),
                "kafka.request.timeout.ms": str(block_ms // 2),
                "kafka.delivery.timeout.ms": str(block_ms // 2),
            }
            values.write.format("kafka").options(**options).save()

        servers = broker.bootstrap_servers

        def ask(_rows: object = None) -> None:
            AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=0.5)

        send()
        write(servers, block_ms=60_000)
        broker.stop()
        assert_away(
            send,
            ask,
            lambda: rows.foreachPartition(ask),
            lambda: write(servers),
            lambda: write("orders.invalid:9092"),
        )


def test_a_name_that_a_task_cannot_resolve_is_away(rows: DataFrame) -> None:
    def resolve(_rows: Rows) -> None:
        socket.getaddrinfo("orders.invalid", 80)

    assert_away(lambda: rows.foreachPartition(resolve))


@contextmanager
def mounted(size: str = "64k", *options: str) -> Iterator[Path]:
    """A file system of one's own in memory."""
    folder = Path(tempfile.mkdtemp())
    text = ",".join([f"size={size}", *options])
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", text, "tmpfs", folder], check=True, capture_output=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


def may_mount() -> bool:
    with suppress(OSError, subprocess.CalledProcessError), mounted():
        return True
    return False


MOUNTS: Final[Sequence[str]] = ["rw", "ro"] if may_mount() else []


def test_a_device_that_is_full_is_away() -> None:
    def write() -> None:
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")

    assert_away(write)


@pytest.mark.parametrize("mode", MOUNTS)
def test_a_folder_of_parquet_or_csv_that_takes_no_more_is_away(
    spark: SparkSession, rows: DataFrame, mode: str
) -> None:
    many = spark.range(20_000).selectExpr("id", "uuid() AS name").repartition(1)
    with mounted("64k", mode) as folder:

        def write(_rows: object = None) -> None:
            Path(folder, "file").write_bytes(bytes(1_000_000))

        assert_away(
            lambda: many.write.mode("append").parquet(f"{folder}/parquet"),
            lambda: many.write.mode("append").csv(f"{folder}/csv"),
            lambda: rows.foreachPartition(write),
            write,
        )


def test_a_value_that_cannot_be_a_folder_s_name_is_no_outage(
    rows: DataFrame, tmp_path: Path
) -> None:
    long = rows.selectExpr("id", "repeat('x', 300) AS name")
    assert_not_away(
        lambda: long.write.partitionBy("name").parquet(f"{tmp_path}/orders"),
        lambda: Path(tmp_path, "x" * 300).write_text("x"),
    )


def test_a_record_that_ends_its_task_is_no_outage(rows: DataFrame) -> None:
    def end(_ids: object) -> Any:
        os._exit(1)

    def kill(_ids: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def crash(_ids: object) -> Any:
        ctypes.string_at(0)

    for call in (end, kill, crash):
        for fails in (
            lambda: rows.select(udf(call)("id")).collect(),  # noqa: B023  (called at once)
            lambda: rows.mapInPandas(call, "id long").collect(),  # noqa: B023
            lambda: rows.foreachPartition(call),  # noqa: B023
        ):
            error = raised(fails)
            assert not sink_is_away(error), error
            assert not no_connection(error), error
