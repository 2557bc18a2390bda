"""Offsets that are gone when they are read: an error by name, or skipped on request."""

import logging
import re
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from tests.gate.kafka.reads import offsets, reader_config, rows, whole
from tests.services.changes import delete_topic
from tests.services.kafka import Topic, TopicFactory

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError
from headrace.gate.kafka.range_reader import ReaderConfig, read_ranges

pytestmark = pytest.mark.usefixtures("engine")


def delete_before(admin: AdminClient, topic: Topic, *ends: int) -> None:
    """Let retention pass: the log of partition i begins at the i-th end."""
    wanted = [Position(topic.name, partition, end) for partition, end in enumerate(ends)]
    for done in admin.delete_records(wanted).values():
        done.result(30)


@pytest.fixture(scope="module")
def cut(topic: TopicFactory, admin: AdminClient) -> Topic:
    """Partition 0 holds [6, 10), partition 1 [3, 10), partition 2 [10, 10)."""
    made = topic(3)
    for partition in range(3):
        made.produce(*[b"x"] * 10, partition=partition)
    delete_before(admin, made, 6, 3, 10)
    return made


LOSSES = [
    (OffsetRange("", 0, 0, 10), OffsetRange("", 0, 0, 6)),
    (OffsetRange("", 0, 2, 7), OffsetRange("", 0, 2, 6)),
    (OffsetRange("", 0, 2, 6), OffsetRange("", 0, 2, 6)),
    (OffsetRange("", 0, 1, 4), OffsetRange("", 0, 1, 4)),
    (OffsetRange("", 2, 0, 10), OffsetRange("", 2, 0, 10)),
    (OffsetRange("", 1, 5, 12), OffsetRange("", 1, 10, 12)),
    (OffsetRange("", 1, 11, 13), OffsetRange("", 1, 11, 13)),
    (OffsetRange("", 7, 0, 3), OffsetRange("", 7, 0, 3)),
]


# Records past the log's end are lost only when nothing has come for so long, which must be enough
# for a busy broker to give the records before it.
TIMEOUT_MS = 3_000


def hasty(topic: Topic, *, fail: bool, timeout_ms: int = TIMEOUT_MS) -> ReaderConfig:
    """A silence is looked into soon."""
    config = reader_config(topic.bootstrap_servers, timeout_ms=timeout_ms, fail_on_data_loss=fail)
    return replace(config, silence_s=0.2)


@pytest.mark.parametrize(("wanted", "missing"), LOSSES)
def test_offsets_that_are_gone_stop_the_read_or_are_skipped_and_logged_on_request(
    cut: Topic, caplog: pytest.LogCaptureFixture, wanted: OffsetRange, missing: OffsetRange
) -> None:
    asked = OffsetRange(cut.name, wanted.partition, wanted.start, wanted.until)
    gone = f"Offsets {cut.name}{missing} are gone from Kafka"
    with pytest.raises(DataLossError, match=re.escape(gone)) as failed:
        offsets(hasty(cut, fail=True), asked)
    assert "failOnDataLoss" in str(failed.value)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "headrace.source"):
        found = offsets(hasty(cut, fail=False), asked)
    assert found == [
        o for o in range(wanted.start, wanted.until) if not missing.start <= o < missing.until
    ]
    (logged,) = [text for text in caplog.messages if "are gone" in text]
    assert logged.startswith(gone)


def test_losses_in_several_partitions_of_one_read_are_each_logged_once(
    cut: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    config = reader_config(cut.bootstrap_servers, fail_on_data_loss=False)
    ranges = [whole(cut, 10, partition=partition) for partition in range(3)]
    for _ in range(5):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "headrace.source"):
            found = rows(read_ranges(config, ranges))
        assert sorted((row["partition"], row["offset"]) for row in found) == [
            *((0, offset) for offset in range(6, 10)),
            *((1, offset) for offset in range(3, 10)),
        ]
        logged = sorted(text for text in caplog.messages if "are gone" in text)
        assert [text.split(" are gone")[0] for text in logged] == [
            f"Offsets {cut.name}-0 [0, 6)",
            f"Offsets {cut.name}-1 [0, 3)",
            f"Offsets {cut.name}-2 [0, 10)",
        ]


def test_retention_that_passes_the_read_half_way_is_seen(
    topic: TopicFactory, admin: AdminClient
) -> None:
    made = topic(1)
    made.produce(*[b"x" * 50_000] * 400)
    # So little is fetched ahead that most is still to be fetched when it goes.
    config = reader_config(
        made.bootstrap_servers,
        fail_on_data_loss=False,
        batch_bytes=1,
        queued_max_messages_kbytes=100,
        max_partition_fetch_bytes=100_000,
    )
    batches = read_ranges(config, [whole(made, 400)])
    first = rows(iter([next(batches)]))
    delete_before(admin, made, 390)
    found = [row["offset"] for row in first + rows(batches)]
    kept = next(offset for offset in found if offset + 1 not in found)
    assert found == [*range(kept + 1), *range(390, 400)]
    assert kept < 380


def test_a_topic_that_was_deleted_is_a_loss_long_before_the_timeout(
    topic: TopicFactory, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    gone, stays = topic(1), topic(1)
    for made in (gone, stays):
        made.produce(b"x", b"y")
    patient = hasty(gone, fail=True, timeout_ms=100_000)
    assert offsets(patient, whole(gone, 2)) == [0, 1]
    delete_topic(admin, gone)
    with pytest.raises(DataLossError, match=rf"{gone.name}-0 \[0, 2\).*does not exist"):
        offsets(patient, whole(gone, 2))
    lenient = hasty(gone, fail=False, timeout_ms=100_000)
    with caplog.at_level(logging.WARNING, "headrace.source"):
        found = rows(read_ranges(lenient, [whole(gone, 2, start=1), whole(stays, 2)]))
    assert [(row["topic"], row["offset"]) for row in found] == [(stays.name, 0), (stays.name, 1)]
    assert any(f"{gone.name}-0 [1, 2) are gone" in text for text in caplog.messages)
