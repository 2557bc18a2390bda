"""The lag of a gate whose query is gone: what its source says now, or how old the figure is."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from tests.journal.journals import fill
from tests.operate.cli.outcomes import invoke
from tests.services.kafka import TopicFactory
from tests.services.ledgers import new_ledger
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.operate.local.servers import free_ports

HOUR_MS = 3_600_000


def gone_for_an_hour(
    folder: Path, source: str, servers: str, *batches: OffsetRange, topic_id: str | None = None
) -> str:
    """A ledger with a gate whose last batch took all that there was, an hour ago."""
    url = f"sqlite:///{folder}/headrace.db"
    then_ms = time.time_ns() // 1_000_000 - HOUR_MS
    with new_ledger(url, clock=lambda: then_ms) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source=source, estimator="pid")
        for offsets in batches:
            planned = PlannedRange(offsets, offsets.until, "rate", topic_id)
            batch = ledger.batches.begin(
                PlannedBatch("orders", "run", (planned,), "rate", servers, lag=offsets.count)
            )
            ledger.batches.succeed(batch.batch_key)
    return url


def told(url: str) -> tuple[dict[str, Any], str]:
    """The gate as JSON, and as a picture."""
    as_json, picture = invoke(url, "status", "--json"), invoke(url, "status")
    assert (as_json.exit_code, picture.exit_code) == (0, 0)
    gate: dict[str, Any] = json.loads(as_json.output)
    assert gate["lag_age_ms"] >= HOUR_MS
    return gate, picture.output


def test_a_journal_is_asked_what_has_come_since(tmp_path: Path) -> None:
    fill(tmp_path / "raw", {0: [30]})
    url = gone_for_an_hour(tmp_path, "journal", str(tmp_path / "raw"), OffsetRange("raw", 0, 0, 10))
    gate, picture = told(url)
    assert (gate["lag"], gate["lag_now"], gate["state"]) == (20, 20, "stalled")
    assert "with 20 records waiting now" in picture
    assert "1 h 0 min ago" not in picture.partition("lag")[2].partition("\n")[0]


def test_kafka_is_asked_of_every_partition_that_was_read(
    topic: TopicFactory, admin: AdminClient, tmp_path: Path
) -> None:
    orders = topic(3)
    described = admin.describe_topics(TopicCollection([orders.name]))[orders.name].result(30)
    for partition in range(3):
        orders.produce(*[b"x"] * 7, partition=partition)
    batches = [OffsetRange(orders.name, 0, 0, 5), OffsetRange(orders.name, 1, 0, 4)]
    topic_id = str(described.topic_id)
    url = gone_for_an_hour(tmp_path, "kafka", orders.bootstrap_servers, *batches, topic_id=topic_id)
    # On a busy machine a broker may not answer in the time that a command waits.
    gate = wait_until(lambda: (found := told(url)[0])["lag_now"] is not None and found)
    assert gate and gate["lag_now"] == 2 + 3, "partition 2 was not read, perhaps for a reason"


def test_of_a_source_that_has_nothing_new_that_is_said(tmp_path: Path) -> None:
    fill(tmp_path / "raw", {0: [30]})
    url = gone_for_an_hour(tmp_path, "journal", str(tmp_path / "raw"), OffsetRange("raw", 0, 0, 30))
    gate, picture = told(url)
    assert (gate["lag_now"], gate["state"]) == (0, "idle")
    assert "nothing waits" in picture


@pytest.mark.integration
@pytest.mark.parametrize("source", ["kafka", "journal", "carrier pigeons"])
def test_of_a_source_that_does_not_answer_the_figures_age_is_said(
    tmp_path: Path, source: str
) -> None:
    (port,) = free_ports(1)
    offsets = OffsetRange("raw", 0, 0, 10)
    url = gone_for_an_hour(tmp_path, source, f"127.0.0.1:{port}", offsets)
    gate, picture = told(url)
    assert (gate["lag"], gate["lag_now"], gate["lag_seconds"]) == (None, None, None)
    assert "none was left 1 h 0 min ago" in picture
