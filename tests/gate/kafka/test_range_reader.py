"""Ranges of offsets, read from a real broker: every record of them, and no other."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from hypothesis import example, given
from hypothesis import strategies as st
from tests.gate.kafka.reads import Transactions, offsets, reader_config, rows, whole
from tests.services.examples import examples
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.errors import BrokerError, SourceError
from headrace.gate.kafka.consumers import warm_consumer
from headrace.gate.kafka.native_reader import NativeConsumer
from headrace.gate.kafka.range_reader import ReaderConfig, read_ranges
from headrace.gate.source.log import ARROW_SCHEMA
from headrace.gate.source.losses import Losses
from headrace.operate.local import KafkaBroker

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture(scope="module")
def numbers(topic: TopicFactory) -> Topic:
    """Ten records in partition 0, five in partition 1, none in partition 2."""
    made = topic(3)
    made.produce(*(str(number).encode() for number in range(10)))
    made.produce(*(str(number).encode() for number in range(5)), partition=1)
    return made


@pytest.mark.parametrize(
    ("start", "until"), [(0, 10), (0, 4), (3, 7), (6, 10), (9, 10), (4, 4), (0, 0)]
)
def test_a_range_gives_its_records_and_no_other(numbers: Topic, start: int, until: int) -> None:
    found = rows(
        read_ranges(reader_config(numbers.bootstrap_servers), [whole(numbers, until, start=start)])
    )
    assert [row["offset"] for row in found] == list(range(start, until))
    assert [row["value"] for row in found] == [str(n).encode() for n in range(start, until)]


def test_no_range_opens_no_consumer() -> None:
    nowhere = reader_config("nowhere.invalid:1")
    assert list(read_ranges(nowhere, [])) == []
    assert list(read_ranges(nowhere, [OffsetRange("t", 0, 5, 5), OffsetRange("t", 1, 9, 3)])) == []


def test_ranges_of_several_topics_and_partitions_come_each_in_order(
    numbers: Topic, topic: TopicFactory
) -> None:
    other = topic(2)
    other.produce(*[b"x"] * 7, partition=1)
    ranges = [
        whole(other, 6, start=1, partition=1),
        whole(numbers, 10, start=2),
        whole(numbers, 5, partition=1),
        whole(other, 0),
    ]
    found = rows(read_ranges(reader_config(numbers.bootstrap_servers), ranges))
    by_partition: dict[tuple[str, int], list[int]] = {}
    for row in found:
        by_partition.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    assert by_partition == {
        (other.name, 1): [1, 2, 3, 4, 5],
        (numbers.name, 0): [2, 3, 4, 5, 6, 7, 8, 9],
        (numbers.name, 1): [0, 1, 2, 3, 4],
    }


def test_a_reader_left_half_way_leaves_nothing_for_the_next(topic: TopicFactory) -> None:
    made = topic(1)
    made.produce(*[b"x" * 1000] * 2000)
    # The setting that a read of this size would otherwise have by its own.
    config = reader_config(made.bootstrap_servers, queued_min_messages=1000)
    left = read_ranges(config, [whole(made, 2000, start=500)])
    assert next(left).column("offset")[0].as_py() == 500
    left.close()  # type: ignore[attr-defined]
    with warm_consumer(config.client, config.read.maker(config)) as idle:
        assert assigned(idle.kafka) == []
    assert offsets(config, whole(made, 20)) == list(range(20))


def assigned(consumer: Any) -> Any:
    """The partitions of an idle consumer, or the positions of a native one."""
    if isinstance(consumer, NativeConsumer):
        return consumer.call("take", 0)[1]
    return consumer.assignment()


def test_two_readers_at_a_time_do_not_share_a_consumer(numbers: Topic) -> None:
    config = reader_config(numbers.bootstrap_servers, batch_bytes=1)
    first = read_ranges(config, [whole(numbers, 10)])
    second = read_ranges(config, [whole(numbers, 10, start=5)])
    seen = [next(first), next(second), next(second), next(first)]
    assert [batch.column("offset")[0].as_py() for batch in seen] == [0, 5, 6, 1]
    assert len(list(first)) == 8
    assert len(list(second)) == 3


def test_only_the_wanted_columns_come_in_the_wanted_order(numbers: Topic) -> None:
    names = ["value", "partition", "offset", "topic"]
    config = reader_config(numbers.bootstrap_servers, columns=names)
    table = pa.Table.from_batches(read_ranges(config, [whole(numbers, 2)]))
    assert table.schema == pa.schema([ARROW_SCHEMA.field(name) for name in names])
    assert table.to_pylist() == [
        {"value": b"0", "partition": 0, "offset": 0, "topic": numbers.name},
        {"value": b"1", "partition": 0, "offset": 1, "topic": numbers.name},
    ]


def test_large_records_come_in_bounded_batches(topic: TopicFactory) -> None:
    made = topic(1)
    made.produce(*[b"x" * 100_000] * 50, *[b"y"] * 1000, b"z" * 900_000)
    config = reader_config(made.bootstrap_servers, batch_bytes=500_000)
    batches = list(read_ranges(config, [whole(made, 1051)]))
    assert all(batch.nbytes <= 500_000 or batch.num_rows == 1 for batch in batches)
    assert [row["offset"] for row in rows(iter(batches))] == list(range(1051))


def test_a_record_larger_than_a_fetch_comes(topic: TopicFactory) -> None:
    made = topic(1, {"max.message.bytes": "4000000"})
    value = bytes(range(256)) * 12_000
    producer = Producer(
        {"bootstrap.servers": made.bootstrap_servers, "message.max.bytes": 4_000_000}
    )
    for sent in (b"before", value, b"after"):
        producer.produce(made.name, sent)
    assert producer.flush(30) == 0
    config = reader_config(made.bootstrap_servers, max_partition_fetch_bytes=10_000)
    found = rows(read_ranges(config, [whole(made, 3)]))
    assert [row["value"] for row in found] == [b"before", value, b"after"]


def test_records_of_all_sizes_come_in_bounded_batches_and_a_huge_one_alone(
    topic: TopicFactory,
) -> None:
    huge_bytes = 30_000_000
    made = topic(1, {"max.message.bytes": str(huge_bytes + 1000)})
    producer = Producer(
        {"bootstrap.servers": made.bootstrap_servers, "message.max.bytes": huge_bytes + 1000}
    )
    for value in (*[b"s" * 5000] * 1000, b"h" * huge_bytes, *[b"s" * 5000] * 1000):
        producer.produce(made.name, value)
    assert producer.flush(30) == 0
    config = reader_config(made.bootstrap_servers, columns=["offset", "value"])
    seen = 0
    for batch in read_ranges(config, [whole(made, 2001)]):
        assert batch.column("offset").to_pylist() == list(range(seen, seen + batch.num_rows))
        sizes = pc.unique(pc.binary_length(batch.column("value"))).to_pylist()
        assert sizes == [huge_bytes if seen == 1000 else 5000]
        assert batch.num_rows == 1 or batch.nbytes <= config.batch_bytes
        seen += batch.num_rows
    assert seen == 2001


def test_compaction_leaves_gaps_that_end_no_range_early(topic: TopicFactory) -> None:
    made = topic(
        1,
        {
            "cleanup.policy": "compact",
            "segment.ms": "50",
            "min.cleanable.dirty.ratio": "0.001",
            "min.compaction.lag.ms": "0",
        },
    )
    for offset in range(30):
        made.produce(b"x", key=b"own %d" % offset if offset % 10 == 4 else b"k%d" % (offset % 3))
    config = reader_config(made.bootstrap_servers, columns=["offset"])
    left = [4, 14, 24, 27, 28, 29]  # the keys of their own, and the last record of each other key
    ends = iter(range(31, 1000))

    def is_cleaned() -> bool:
        # Only segments that are closed are cleaned, and the next record closes one.
        end = next(ends)
        made.produce(b"x", key=b"own %d" % end)
        return offsets(config, whole(made, end))[: len(left) + 1] == [*left, 30]

    wait_until(is_cleaned)
    for edge in range(30):
        assert offsets(config, whole(made, edge)) == [o for o in left if o < edge]
        assert offsets(config, whole(made, 30, start=edge)) == [o for o in left if o >= edge]


def test_records_whose_copy_on_disk_is_damaged_are_neither_given_nor_left_out(
    broker: KafkaBroker, topic: TopicFactory
) -> None:
    made = topic(1)
    for value in (b"first", b"second", b"third"):  # each in a batch of its own
        made.produce(value)
    assert broker.folder is not None
    segment = broker.folder / "data" / f"{made.name}-0" / "00000000000000000000.log"
    with segment.open("r+b") as log:
        log.seek(segment.read_bytes().index(b"second"))
        log.write(b"SECOND")
    config = reader_config(made.bootstrap_servers, columns=["value"], check_crcs=True)
    with pytest.raises(SourceError, match=r"\[0, 3\) cannot be read, at offset 1: .*CRC"):
        rows(read_ranges(config, [whole(made, 3)]))
    assert rows(read_ranges(config, [whole(made, 1)])) == [{"value": b"first"}]
    assert rows(read_ranges(config, [whole(made, 3, start=2)])) == [{"value": b"third"}]


def reader_of(topic: Topic, level: str) -> ReaderConfig:
    return reader_config(topic.bootstrap_servers, columns=["offset"], isolation_level=level)


def test_an_open_transaction_is_waited_for_and_not_called_lost(topic: TopicFactory) -> None:
    made = topic(1)
    made.produce(b"before")
    transactions = Transactions(made)
    transactions.begin(1)
    assert offsets(reader_of(made, "read_uncommitted"), whole(made, 2)) == [0, 1]
    committed = reader_of(made, "read_committed")
    assert offsets(committed, whole(made, 1)) == [0]
    impatient = replace(committed, on_loss=Losses("Kafka", fail=False).pass_over, timeout_ms=200)
    # The range begins after the first record: a busy broker may not give even that in time.
    with pytest.raises(BrokerError, match=rf"{made.name}-0 \[1, 2\) for 200 ms"):
        offsets(impatient, whole(made, 2, start=1))
    batches = read_ranges(committed, [whole(made, 2)])
    assert next(batches).to_pylist() == [{"offset": 0}]
    transactions.end(commit=True)
    assert rows(batches) == [{"offset": 1}]


# Each partition gets these, one after the other: (records, how they are written).
WRITES = [
    (3, "plain"),
    (4, "aborted"),
    (2, "committed"),
    (1, "aborted"),
    (5, "plain"),
    (2, "aborted"),
]
GAP_PARTITIONS = 3


def offsets_in(partition: int, level: str) -> list[int]:
    """The offsets of a partition that a reader is given; each transaction ends with another one."""
    found: list[int] = []
    offset = 0
    for count, kind in WRITES[partition:]:
        if level == "read_uncommitted" or kind != "aborted":
            found += range(offset, offset + count)
        offset += count + (kind != "plain")
    return found


def end_of(partition: int) -> int:
    return sum(count + (kind != "plain") for count, kind in WRITES[partition:])


@pytest.fixture(scope="module")
def gaps(topic: TopicFactory) -> Topic:
    made = topic(GAP_PARTITIONS)
    transactions = Transactions(made)
    for partition in range(GAP_PARTITIONS):
        for count, kind in WRITES[partition:]:
            if kind == "plain":
                made.produce(*[b"plain"] * count, partition=partition)
            else:
                transactions.write(count, partition, commit=kind == "committed")
    return made


@st.composite
def disjoint(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """``(partition, start, until)``: ranges of which no two share an offset, in any order."""
    found = []
    for partition in range(GAP_PARTITIONS):
        marks = draw(st.sets(st.integers(0, end_of(partition)), max_size=6))
        cuts = sorted(marks)
        found += [(partition, *pair) for pair in zip(cuts[::2], cuts[1::2], strict=False)]
        found += [(partition, *pair) for pair in zip(cuts[1::2], cuts[2::2], strict=False)]
    return draw(st.permutations(found))


@examples(120)
@given(
    wanted=disjoint(),
    batch_bytes=st.sampled_from([1, 60, 1_000_000]),
    level=st.sampled_from(["read_committed", "read_uncommitted"]),
)
@example([(0, 0, end_of(0))], 60, "read_committed")
@example([(0, 3, 6), (0, 0, 3)], 60, "read_committed")  # of which none holds a record, and one
def test_any_ranges_give_exactly_their_records_once_and_in_order(
    gaps: Topic, wanted: list[tuple[int, int, int]], batch_bytes: int, level: str
) -> None:
    """By one warm consumer, which goes on, back and elsewhere.

    Also ranges that end on a control record or within an aborted transaction, or hold nothing.
    """
    config = reader_config(
        gaps.bootstrap_servers,
        columns=["partition", "offset"],
        batch_bytes=batch_bytes,
        isolation_level=level,
    )
    ranges = [OffsetRange(gaps.name, *each) for each in wanted]
    found = rows(read_ranges(config, ranges))
    for partition in range(GAP_PARTITIONS):
        asked = {o for p, start, until in wanted if p == partition for o in range(start, until)}
        seen = [row["offset"] for row in found if row["partition"] == partition]
        assert seen == [offset for offset in offsets_in(partition, level) if offset in asked]
