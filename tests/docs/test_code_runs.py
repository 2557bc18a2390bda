"""The Python of each page runs as it stands, one block after the other.

An error names the page and the line. Values that a page cannot know, such as a broker's address,
are put in their places.
"""

import itertools
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pytest
import requests
import sqlalchemy
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession, functions
from requests.adapters import HTTPAdapter
from tests.docs.conftest import Shop
from tests.docs.pages import PAGES, ROOT, Snippet, blocks
from tests.journal.receivers.processes import receiver
from tests.services import clouds
from tests.services.kafka import Topics, records_in
from tests.services.spark_home import surroundings
from tests.services.waiting import wait_until
from urllib3.util import Retry

import headrace
from headrace.core.timing import wall_clock_ms
from headrace.gate.ledger.ledger import Ledger
from headrace.journal import Journal, Records
from headrace.journal.receivers import Hosting, host

pytestmark = pytest.mark.nightly

ORDERS: Final = 24
"""Records of the shop: the isolated ones, and the deferred ones."""

WITH_CODE: Final = {
    str(page.relative_to(ROOT)) for page in PAGES if next(blocks(page, "python"), None)
} - {"README.md"}  # tests/test_install.py runs it, with the package


@dataclass
class Reader:
    """Runs the code of a page, in the working directory.

    Attributes:
        page: Its path in the repository.
        names: Names that its code finds, and has defined.
        in_place: Texts of the page, with the values that replace them because it cannot know them.
    """

    page: str
    names: dict[str, Any]
    in_place: Mapping[str, str] = field(default_factory=dict)

    def read(self) -> list[Snippet]:
        return list(blocks(ROOT / self.page, "python"))

    def run(self, block: Snippet) -> None:
        code = block.text
        for found, put in self.in_place.items():
            code = code.replace(found, put)
        # Its lines are those of the page, in the trace of an error.
        exec(compile("\n" * (block.line - 1) + code, self.page, "exec"), self.names)  # noqa: S102

    def run_all(self) -> None:
        for block in self.read():
            self.run(block)


def paths_in(shop: Shop) -> dict[str, str]:
    """Spark resolves relative paths in the folder that it was started in, not in ours."""
    return {
        "localhost:9092": shop.topic.bootstrap_servers,
        '.option("subscribe", "orders")': f'.option("subscribe", "{shop.topic.name}")'
        '.option("startingOffsets", "earliest")',
        '"ckpt/orders"': f'"{shop.folder}/new/ckpt"',
        '"checkpoints"': f'"{shop.folder}/new/checkpoints"',
        'f"out/': f'f"{shop.folder}/new/out/',
        '"journals/': f'"{shop.folder}/journals/',
        "sqlite:///headrace.db": f"sqlite:///{shop.folder}/new.db",
    }


def getting_started(spark: SparkSession, shop: Shop) -> None:
    reader = Reader("docs/getting-started.md", {"spark": spark}, paths_in(shop))
    reader.run_all()
    query = reader.names["query"]
    query.processAllAvailable()
    query.stop()
    assert spark.read.parquet(f"{shop.folder}/new/out").count() == ORDERS


def operations(spark: SparkSession, shop: Shop) -> None:
    names = {"spark": spark}
    offsets = {'{"orders"': f'{{"{shop.topic.name}"', "5000": "1", "6000": "4"}
    reader = Reader("docs/operations.md", names, paths_in(shop) | offsets)
    reader.run_all()
    assert reader.names["df"].count() == 3


def commands(_spark: SparkSession, shop: Shop) -> None:
    names = {"headrace": headrace}
    reader = Reader("docs/commands.md", names, {"sqlite:///headrace.db": shop.ledger})
    reader.run_all()
    assert {each.about for each in reader.names["status"].needs} == {"orders"}


def failures(spark: SparkSession, shop: Shop) -> None:
    gate = headrace.Gate("fails", interval="1 second", ledger=shop.ledger)
    df = shop.orders(spark, gate)
    table = sqlalchemy.Table(
        "sold",
        sqlalchemy.MetaData(),
        *(
            sqlalchemy.Column(name, kind)
            for name, kind in (
                ("key", sqlalchemy.LargeBinary),
                ("value", sqlalchemy.LargeBinary),
                ("topic", sqlalchemy.Text),
                ("partition", sqlalchemy.Integer),
                ("offset", sqlalchemy.Integer),
                ("timestamp", sqlalchemy.DateTime),
                ("timestampType", sqlalchemy.Integer),
            )
        ),
    )
    table.metadata.create_all(engine := sqlalchemy.create_engine(shop.ledger))
    names = {
        "headrace": headrace,
        "sqlalchemy": sqlalchemy,
        "gate": gate,
        "df": df,
        "handler": lambda _df, _batch: None,
        "orders": table,
    }
    reader = Reader("docs/failures.md", names)
    reader.run_all()
    of_sinks = Reader("docs/sinks.md", reader.names)
    (in_transaction,) = (each for each in of_sinks.read() if "batch.transaction()" in each.text)
    of_sinks.run(in_transaction)
    writer = gate.write(df, reader.names["handler"])
    place = str(shop.folder / "ckpt" / "fails")
    writer.option("checkpointLocation", place).trigger(availableNow=True).start().awaitTermination()
    with engine.connect() as connection:
        assert len(connection.execute(sqlalchemy.select(table)).all()) == ORDERS
    engine.dispose()


def state(spark: SparkSession, shop: Shop) -> None:
    places = paths_in(shop) | {'"ckpt/counts"': f'"{shop.folder}/new/counts"'}
    reader = Reader("docs/state.md", {"spark": spark}, places)
    reader.run_all()
    reader.names["query"].processAllAvailable()
    reader.names["query"].stop()
    total = spark.read.parquet(f"{shop.folder}/new/out/totals-*").groupBy().sum().first()
    assert total is not None and total[0] == ORDERS


def decoding(spark: SparkSession, shop: Shop) -> None:
    gate = headrace.Gate("typed", interval="1 second", ledger=f"sqlite:///{shop.folder}/typed.db")
    names = {"headrace": headrace, "spark": spark, "gate": gate, "token": "s3cret"}
    reader = Reader("docs/decoding.md", names, paths_in(shop))
    reader.run_all()
    found = reader.names["reader"].option("kafka.bootstrap.servers", shop.topic.bootstrap_servers)
    rows = found.option("subscribe", shop.topic.name).load()
    assert rows.columns[-1] == "_corrupt_record"
    assert rows.count() == ORDERS


def sinks(spark: SparkSession, shop: Shop) -> None:
    """Its handlers on a batch of three records, twice.

    That for Delta needs another Spark; `tests/recovery/sinks.py` runs it.
    """
    engine = sqlalchemy.create_engine(f"sqlite:///{shop.folder}/sink.db")
    orders = sqlalchemy.Table(
        "orders",
        sqlalchemy.MetaData(),
        sqlalchemy.Column("offset", sqlalchemy.Integer),
        sqlalchemy.Column("value", sqlalchemy.LargeBinary),
    )
    orders.create(engine)
    (shop.folder / "lake").mkdir()
    lake = SqlCatalog(
        "lake",
        uri=f"sqlite:///{shop.folder}/catalog.db",
        warehouse=f"file://{shop.folder}/lake",
    )
    lake.create_namespace("shop")
    table = lake.create_table(
        "shop.orders", pa.schema([("offset", pa.int64()), ("value", pa.binary())])
    )
    copies = Topics(shop.topic.bootstrap_servers).create(prefix="copies")
    kafka = {"kafka.bootstrap.servers": shop.topic.bootstrap_servers}
    names: dict[str, Any] = {
        "spark": spark,
        "sqlalchemy": sqlalchemy,
        "engine": engine,
        "orders": orders,
        "catalog": lake,
        "kafka": kafka | {"topic": copies.name},
        "kafka_source": kafka | {"subscribe": copies.name, "startingOffsets": "earliest"},
    }
    reader = Reader("docs/sinks.md", names, {'f"out/': f'f"{shop.folder}/new/out/'})
    batch = headrace.Batch("a key", 0, (), 1, "live", 1)
    df = spark.read.format("headrace-kafka").options(**kafka, subscribe=shop.topic.name).load()
    for block in reader.read():
        reader.run(block)
        for handler in {
            "write_orders",
            "write_iceberg",
            "write_files",
            "write_kafka",
        } & names.keys():
            for _run in range(2):
                names[handler](df.limit(3), batch)
            del names[handler]
    with engine.connect() as connection:
        assert len(connection.execute(sqlalchemy.select(orders)).all()) == 3
    engine.dispose()
    assert len(table.refresh().scan().to_arrow()) == 3
    assert spark.read.parquet(f"{shop.folder}/new/out").count() == 3
    assert len(records_in(copies)) == 6
    kept = names["once"].writeStream.format("memory").queryName("kept")
    kept.trigger(availableNow=True).start().awaitTermination()
    assert spark.table("kept").count() == 3


def receivers(spark: SparkSession, shop: Shop) -> None:
    names = {
        "headrace": headrace,
        "spark": spark,
        "token": "s3cret",
        "query": SimpleNamespace(awaitTermination=lambda: None),
        "itertools": SimpleNamespace(count=lambda: itertools.islice(itertools.count(), 3)),
        "Records": Records,
        "now_ms": wall_clock_ms,
        "Hosting": Hosting,
        "host": host,
        "F": functions,
    }
    in_place = {
        "s3://bucket/orders": f"{shop.folder}/journals/hosted",
        "postgresql://db/ledger": f"sqlite:///{shop.folder}/new.db",
        "receivers.start(http, 2, hosting)": "receivers.start(http, 1, hosting)",  # of two cores
    }
    reader = Reader("docs/receivers.md", names, paths_in(shop) | in_place)
    reader.run_all()
    assert Journal.open(f"{shop.folder}/journals/numbers").lane_bounds(0) == (0, 3)


def senders(_spark: SparkSession, shop: Shop) -> None:
    names = {"requests": requests, "HTTPAdapter": HTTPAdapter, "Retry": Retry, "body": b"1\n2\n"}
    with receiver(shop.folder, "http") as running:
        host_name, port = running.address
        reader = Reader("docs/network.md", {**names, "url": f"http://{host_name}:{port}"})
        reader.run_all()
    assert reader.names["answer"].json()["until"] == 2


def flows(spark: SparkSession, shop: Shop) -> None:
    topics = {"orders": shop.topic, "orders.clean": shop.clean}
    kafka = {f'kafka("{name}", ': f'kafka("{topic.name}", ' for name, topic in topics.items()}
    reader = Reader("docs/flows.md", {"spark": spark}, kafka | paths_in(shop))
    declared, started, *others = reader.read()
    reader.run(declared)
    stop = threading.Thread(target=lambda: _stop_when_stored(reader.names, shop.folder))
    stop.start()
    reader.run(started)
    stop.join()
    for block in others:
        reader.run(block)


def _stop_when_stored(names: dict[str, Any], folder: Path) -> None:
    wait_until(lambda: list(folder.glob("new/out/batch=*/_SUCCESS")), timeout_s=180)
    names["running"].stop()


def kafka_client_options(spark: SparkSession, _shop: Shop) -> None:
    headrace.register(spark)
    names = {"reader": spark.readStream.format("headrace-kafka")}
    with clouds.stubbed():
        Reader("docs/kafka-client-options.md", names).run_all()


def handlers_under_test(_spark: SparkSession, _shop: Shop) -> None:
    """With a handler that is as good as the page wants it: keyed by the batch."""
    kept: dict[str, list[str]] = {}

    class Sink:
        @property
        def rows(self) -> list[str]:
            return [value for values in kept.values() for value in values]

    def handler(df: DataFrame, batch: headrace.Batch) -> None:
        kept[batch.key] = [bytes(row.value).decode() for row in df.collect()]

    reader = Reader("docs/testing.md", {"handler": handler, "sink": Sink()})
    for block in reader.read():
        reader.run(block)
        tests = [name for name in reader.names if name.startswith("test_")]
        for name in tests:
            reader.names.pop(name)()


def deploying(spark: SparkSession, shop: Shop) -> None:
    """With a session of this process; `tests/compat/test_over_connect.py` has a server."""
    kept: list[str] = []

    def handler(df: DataFrame, _batch: headrace.Batch) -> None:
        kept.extend(df.columns)

    remote = 'SparkSession.builder.remote("sc://connect.example.com:15002").getOrCreate()'
    places = {remote: "session", "s3a://checkpoints": f"{shop.folder}/new/connect"}
    ledger = f"sqlite:///{shop.folder}/connect.db"
    secrets = SimpleNamespace(get=lambda *name: {("headrace", "ledger"): shop.ledger}[name])
    names = {"session": spark, "LEDGER": ledger, "handler": handler}
    names["dbutils"] = SimpleNamespace(secrets=secrets)
    reader = Reader("docs/deploying.md", names, places | paths_in(shop))
    url, *recipes, first, second, on_a_platform = reader.read()
    with clouds.stubbed():
        for block in (url, *recipes):
            Reader("docs/deploying.md", {}).run(block)
    for block, column in ((first, "value"), (second, "amount")):
        reader.run(block)
        try:
            wait_until(partial(kept.__contains__, column))
        finally:
            reader.names["query"].stop()
        with Ledger.open(ledger) as opened:  # the second one is to read the same records
            opened.operator_limits.restart("orders", "a test", "another checkpoint")
    reader.run(on_a_platform)
    assert reader.names["gate"].interval_ms == 2_000


def compatibility(spark: SparkSession, shop: Shop) -> None:
    """In a program of Spark's, whose status Spark 4.3.0 gets wrong (SPARK-59135)."""
    reader = Reader("docs/compatibility.md", {}, paths_in(shop))
    (block,) = reader.read()
    folder = shop.folder / "pipeline"
    folder.mkdir()
    code = block.text.replace('"out/orders"', f'"{folder}/out"')
    for found, put in reader.in_place.items():
        code = code.replace(found, put)
    (folder / "orders.py").write_text(code)
    (folder / "spark-pipeline.yml").write_text(
        f"name: orders\nstorage: file://{folder}/storage\n"
        "libraries:\n  - glob:\n      include: orders.py\n"
    )
    home = surroundings()["SPARK_HOME"]
    run = subprocess.run(
        [f"{home}/bin/spark-pipelines", "run", "--spec", str(folder / "spark-pipeline.yml")],
        cwd=folder,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.returncode == 0 or "UNKNOWN_RESPONSE" in run.stdout + run.stderr, run.stdout
    assert spark.read.parquet(f"{folder}/out").count() == ORDERS
    with Ledger.open(f"sqlite:///{shop.folder}/new.db") as ledger:
        assert [each.planned_records for each in ledger.batches.newest("orders")] == [ORDERS]


READERS: Final[dict[str, Callable[[SparkSession, Shop], None]]] = {
    "docs/getting-started.md": getting_started,
    "docs/compatibility.md": compatibility,
    "docs/commands.md": commands,
    "docs/operations.md": operations,
    "docs/failures.md": failures,
    "docs/state.md": state,
    "docs/decoding.md": decoding,
    "docs/sinks.md": sinks,
    "docs/receivers.md": receivers,
    "docs/network.md": senders,
    "docs/flows.md": flows,
    "docs/kafka-client-options.md": kafka_client_options,
    "docs/deploying.md": deploying,
    "docs/testing.md": handlers_under_test,
}


def test_the_code_of_every_page_is_run() -> None:
    assert READERS.keys() >= WITH_CODE


@pytest.mark.parametrize("page", sorted(WITH_CODE))
def test_the_code_of_a_page_runs(page: str, spark: SparkSession, shop: Shop) -> None:
    READERS[page](spark, shop)
