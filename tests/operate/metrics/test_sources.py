"""Metrics that come from the sources themselves: a journal, and a real broker."""

import time
from pathlib import Path

from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from tests.operate.cli.test_waiting_now import gone_for_an_hour
from tests.operate.metrics.test_exposition import scrape, value
from tests.services.kafka import TopicFactory

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.ledger import Ledger
from headrace.operate.local.servers import free_ports
from headrace.operate.metrics.scrape import MetricsMemory
from headrace.operate.status.lags import LagWatch
from headrace.operate.status.sources import Sources
from headrace.testing import ManualClock


def asked(url: str) -> dict[str, float | None]:
    """Ask the source of the gate ``orders``; return the values that a scrape has of it."""
    now = ManualClock(now_ms=time.time_ns() // 1_000_000)
    with Ledger.open(url, create=False) as ledger:
        samples = scrape(
            ledger, now, MetricsMemory(LagWatch(Sources())), wait_s=30, per_partition=True
        )
    names = ("lag_records", "lag_seconds", "lag_age_seconds", "retention_remaining_seconds")
    return {name: value(samples, name) for name in names}


def test_kafka_says_how_old_the_next_record_is_and_when_it_is_deleted(
    topic: TopicFactory, admin: AdminClient, tmp_path: Path
) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 30)
    url = gone_for_an_hour(
        tmp_path, "kafka", orders.bootstrap_servers, OffsetRange(orders.name, 0, 0, 10)
    )
    before = asked(url)
    assert before["lag_records"] == 20
    assert before["lag_seconds"] is not None
    assert before["lag_seconds"] < 600, "by the record's timestamp, not since the last batch"
    for future in admin.delete_records([KafkaPartition(orders.name, 0, 5)]).values():
        future.result()
    after = asked(url)
    assert after["retention_remaining_seconds"] is not None
    assert 0 <= after["retention_remaining_seconds"] < 60
    for future in admin.delete_records([KafkaPartition(orders.name, 0, 15)]).values():
        future.result()
    lost = asked(url)
    assert (lost["lag_records"], lost["retention_remaining_seconds"]) == (15, 0)


def test_a_broker_that_is_away_leaves_no_0_for_a_gate_that_does_not_run(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = gone_for_an_hour(tmp_path, "kafka", f"127.0.0.1:{port}", OffsetRange("orders", 0, 0, 10))
    now = ManualClock(now_ms=time.time_ns() // 1_000_000)
    with Ledger.open(url, create=False) as ledger:
        memory = MetricsMemory(LagWatch(Sources()))
        samples = scrape(
            ledger, now, memory, wait_s=0, per_partition=True, kafka_exporter_names=True
        )
    assert [name for (name, _) in samples if "lag" in name] == ["headrace_lag_age_seconds"]
    age_s = value(samples, "lag_age_seconds")
    assert age_s is not None
    assert age_s >= 3_590
