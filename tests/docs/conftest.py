"""The folder in which the pages are read: what their commands and their code find there."""

import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.docs.pages import ROOT, blocks
from tests.journal.journals import fill
from tests.operate.cli.outcomes import add_failed
from tests.services.kafka import Topic, Topics

import headrace
from headrace.core.ranges import OffsetRange
from headrace.gate.execution.policy import Last
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger

GONE: Final = ErrorReport("DataLossError", "orders-0 [0, 1) has left Kafka.", "")

HANDLER: Final = """
def write(df, batch):
    df.count()
"""

DEFERRING_FLOW: Final = """
from headrace.flow import Flow, kafka

orders = Flow("orders", ledger="sqlite:///headrace.db", checkpoints="checkpoints")
orders.channel("raw", kafka("{raw}", "{servers}"))
orders.channel("clean", kafka("{clean}", "{servers}"))


@orders.stage("clean", reads="raw", writes="clean", on_failure="defer")
def clean(df, batch):
    return df.select("value")
"""


@dataclass(frozen=True)
class Shop:
    """A folder with a ledger, a checkpoint, journals, and modules with a handler and flows.

    The gate ``orders`` has read a topic: one batch has left dead letters, one has failed. The gate
    ``received`` has read the journal; the gate ``old`` has a dead batch.

    Attributes:
        folder: All of it.
        topic: The topic that the pages call ``orders``.
        clean: The topic that the pages call ``orders.clean``.
        failed: The key of the failed batch.
        dead: The key of the dead batch.
    """

    folder: Path
    topic: Topic
    clean: Topic
    failed: str = ""
    dead: str = ""

    @property
    def ledger(self) -> str:
        return f"sqlite:///{self.folder}/headrace.db"

    def run(
        self,
        spark: SparkSession,
        gate: headrace.Gate,
        source: DataFrame,
        *,
        on_failure: Last = "stop",
    ) -> None:
        """A query that processes what is there, and ends."""

        def handler(df: DataFrame, batch: headrace.Batch) -> None:
            values = [bytes(row.value) for row in df.select("value").collect()]
            if b"bread" in values:
                raise ValueError("this order has no price")
            batch.reject(df.where("value = 'poison'"), "this order has no price")

        writer = gate.write(source, handler, on_failure=on_failure, backfill="manual")
        place = str(self.folder / "ckpt" / gate.name)
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()

    def defer_in_flow(self) -> None:
        """Have a batch of the stage ``clean`` fail that reads the topic."""
        ranges = OffsetRange(self.topic.name, 0, 0, 10)
        with Ledger.open(self.ledger) as ledger:
            add_failed(ledger, "orders.clean", ranges, self.topic.bootstrap_servers)

    def orders(self, spark: SparkSession, gate: headrace.Gate) -> DataFrame:
        """The topic, from its beginning, behind a gate."""
        return (
            gate.read(spark, "kafka")
            .option("kafka.bootstrap.servers", self.topic.bootstrap_servers)
            .option("subscribe", self.topic.name)
            .option("startingOffsets", "earliest")
            .load()
        )


def flow_of_the_page(shop: Shop) -> str:
    """The first block of the page about flows, on real topics."""
    code = next(blocks(ROOT / "docs/flows.md", "python")).text
    for name, topic in (("orders", shop.topic), ("orders.clean", shop.clean)):
        found = f'kafka("{name}", "localhost:9092")'
        assert found in code
        code = code.replace(found, f'kafka("{topic.name}", "{topic.bootstrap_servers}")')
    return code


@pytest.fixture(scope="module")
def shop_template(
    spark: SparkSession, topics: Topics, tmp_path_factory: pytest.TempPathFactory
) -> Shop:
    """The shop that each test gets a copy of."""
    orders, clean = topics.create(prefix="orders"), topics.create(prefix="orders.clean")
    shop = Shop(tmp_path_factory.mktemp("shop"), orders, clean)
    folder = shop.folder
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").write_text(flow_of_the_page(shop))
    (folder / "shop" / "orders.py").write_text(HANDLER)
    servers = orders.bootstrap_servers
    deferring = DEFERRING_FLOW.format(raw=orders.name, clean=clean.name, servers=servers)
    (folder / "shop" / "flows.py").write_text(deferring)
    (folder / "kafka.properties").write_text("# this broker wants no password\n")
    (folder / "orders.ndjson").write_text('{"id": 1}\n{"id": 2}\n')
    fill(folder / "journals" / "orders", {0: [20, 10]})
    gate = headrace.Gate("orders", interval="1 second", ledger=shop.ledger)
    shop.topic.produce(b"poison", *[b"tea"] * 20, b"poison")
    source = shop.orders(spark, gate)
    shop.run(spark, gate, source, on_failure="defer")
    shop.topic.produce(b"bread", b"butter")
    source = shop.orders(spark, gate)
    shop.run(spark, gate, source, on_failure="defer")
    received = headrace.Gate("received", interval="1 second", ledger=shop.ledger)
    source = received.read(spark, "journal").load(str(folder / "journals" / "orders"))
    shop.run(spark, received, source)
    with Ledger.open(shop.ledger) as ledger:
        (failed,) = ledger.batches.failed("orders", 10)
        dead = add_failed(
            ledger, "old", OffsetRange(shop.topic.name, 0, 0, 1), shop.topic.bootstrap_servers
        ).batch_key
        ledger.batches.claim(dead, "a backfill", 60_000)
        ledger.batches.mark_dead(dead, "a backfill", GONE)
    return replace(shop, failed=failed.batch_key, dead=dead)


@pytest.fixture
def shop(shop_template: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop of one's own, which is the working directory."""
    folder = tmp_path / "here"
    shutil.copytree(shop_template.folder, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("shop", "shop.orders", "shop.flows"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return replace(shop_template, folder=folder)
