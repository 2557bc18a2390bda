"""The planner without Spark and without a gate: what each batch of a stream will read."""

import json

import pytest
from confluent_kafka.admin import AdminClient
from tests.services.changes import add_partitions
from tests.services.kafka import TopicFactory
from tests.services.planners import next_batch, planner_of

from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError, SourceError
from headrace.testing import ManualClock


def test_a_stream_reads_all_there_is_and_then_what_comes(topic: TopicFactory) -> None:
    orders = topic(2)
    orders.produce(b"a", b"b", b"c")
    with planner_of(orders) as planner:
        end, ranges = next_batch(planner, planner.initial())
        assert ranges == [OffsetRange(orders.name, 0, 0, 3)]
        orders.produce(b"d", partition=1)
        end, ranges = next_batch(planner, end)
        assert ranges == [OffsetRange(orders.name, 1, 0, 1)]
        assert planner.latest() == {orders.name: {"0": 3, "1": 1}}
        assert {key: value for key, value in end.items() if not key.startswith("@")} == {
            orders.name: {"0": 3, "1": 1}
        }


def test_where_nothing_is_new_the_start_itself_comes_back(topic: TopicFactory) -> None:
    orders = topic()
    orders.produce(b"a")
    with planner_of(orders) as planner:
        end, _ = next_batch(planner, planner.initial())
        assert next_batch(planner, end) == (end, [])


def test_the_first_plan_pins_where_the_stream_began_though_it_is_empty(topic: TopicFactory) -> None:
    orders = topic()
    orders.produce(b"before", b"before")
    with planner_of(orders, {"startingOffsets": "latest"}) as planner:
        start = planner.initial()
        end, ranges = next_batch(planner, start)
        assert end != start
        assert ranges == []
        orders.produce(b"after")
        _, ranges = next_batch(planner, end)
        assert ranges == [OffsetRange(orders.name, 0, 2, 3)]


def test_a_first_batch_keeps_its_beginning_though_spark_asks_for_it_again(
    topic: TopicFactory,
) -> None:
    orders = topic()
    orders.produce(b"before")
    with planner_of(orders, {"startingOffsets": "latest"}) as planner:
        start = planner.initial()
        orders.produce(b"in the first batch")
        end = planner.advance(start, everything=False)
        orders.produce(b"after the plan")
        assert planner.begin(planner.initial(), end).ranges == [OffsetRange(orders.name, 0, 1, 2)]


def test_a_batch_planned_before_a_restart_has_the_same_ranges_after_it(topic: TopicFactory) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 10)
    with planner_of(orders, {"maxOffsetsPerTrigger": 4}) as before:
        first, _ = next_batch(before, before.initial())
        second = before.advance(first, everything=False)
    with planner_of(orders, {"maxOffsetsPerTrigger": 1}) as after:
        assert after.begin(first, second).ranges == [OffsetRange(orders.name, 0, 4, 8)]
        _, ranges = next_batch(after, second)
        assert ranges == [OffsetRange(orders.name, 0, 8, 9)]


def test_an_offset_of_the_native_connector_is_a_place_to_go_on_from(topic: TopicFactory) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 5)
    with planner_of(orders) as planner:
        end, ranges = next_batch(planner, {orders.name: {"0": 2}})
        assert ranges == [OffsetRange(orders.name, 0, 2, 5)]
        assert end["@checkpoint"]


def test_a_partition_that_joins_is_read_from_its_beginning_and_the_offset_says_so(
    topic: TopicFactory, admin: AdminClient
) -> None:
    orders = topic()
    orders.produce(b"a")
    with planner_of(orders) as planner:
        end, _ = next_batch(planner, planner.initial())
        add_partitions(admin, orders, 2)
        orders.produce(b"b", b"c", partition=1)
        end, ranges = next_batch(planner, end)
        assert ranges == [OffsetRange(orders.name, 1, 0, 2)]
        assert end["@from"] == {orders.name: {"1": 0}}
        orders.produce(b"d", partition=1)
        end, ranges = next_batch(planner, end)
        assert ranges == [OffsetRange(orders.name, 1, 2, 3)]
        assert "@from" not in end


def test_topics_that_come_to_match_a_pattern_are_read_from_their_beginning(
    topic: TopicFactory,
) -> None:
    first = topic(prefix="joining")
    first.produce(b"a")
    with planner_of(first, {"subscribePattern": "^joining-", "startingOffsets": "latest"}) as p:
        end, _ = next_batch(p, p.initial())
        second = topic(prefix="joining")
        topic(prefix="not-joining").produce(b"c")
        second.produce(b"b")
        _, ranges = next_batch(p, end)
        assert ranges == [OffsetRange(second.name, 0, 0, 1)]


def test_assigned_partitions_are_all_that_is_read(topic: TopicFactory) -> None:
    orders = topic(3)
    for number in range(3):
        orders.produce(b"a", partition=number)
    with planner_of(orders, {"assign": json.dumps({orders.name: [0, 2]})}) as planner:
        _, ranges = next_batch(planner, planner.initial())
    assert ranges == [OffsetRange(orders.name, number, 0, 1) for number in (0, 2)]


def test_what_is_named_must_exist_when_a_stream_starts(topic: TopicFactory) -> None:
    orders = topic()
    missing = [
        ({"subscribe": f"{orders.name},no-such-topic"}, "'no-such-topic' (subscribe)"),
        ({"assign": json.dumps({orders.name: [0, 7]})}, f"{orders.name}-7 (assign)"),
    ]
    for options, told in missing:
        given = {**options, "fetchOffset.numRetries": 0}
        with planner_of(orders, given) as planner, pytest.raises(SourceError) as raised:
            planner.initial()
        assert str(raised.value) == f"Kafka has no {told}; create it, or correct the name."


def test_starting_offsets_are_of_every_partition_that_is_read(topic: TopicFactory) -> None:
    orders = topic(2)
    options = {"startingOffsets": json.dumps({orders.name: {"0": 0}})}
    with planner_of(orders, options) as planner, pytest.raises(OptionError) as raised:
        planner.initial()
    assert str(raised.value) == (
        f"startingOffsets leaves out {orders.name}-1; it must have a value for each partition that"
        " is read, and for no other partition (-1 is the latest offset, -2 the earliest)."
    )


def test_starting_offsets_beyond_the_end_are_no_loss_and_the_message_says_where_it_ends(
    topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    orders = topic(2)
    orders.produce(b"a", b"b", b"c")
    options = {"startingOffsets": json.dumps({orders.name: {"0": 4, "1": 0}})}
    said = f"startingOffsets is 4 for {orders.name}-0, beyond its end at 3"
    with planner_of(orders, options) as planner, pytest.raises(OptionError) as raised:
        planner.initial()
    assert str(raised.value) == f"{said}; set an offset within the log, or -1 for the end."
    with planner_of(orders, options | {"failOnDataLoss": "false"}) as planner:
        start = planner.initial()
        orders.produce(b"d")
        assert next_batch(planner, start)[1] == [OffsetRange(orders.name, 0, 3, 4)]
    assert caplog.messages == [f"{said}; the partition is read from its end."]
    with planner_of(orders, options) as planner:  # which is at the end by now
        assert next_batch(planner, planner.initial())[1] == []


def test_available_now_stops_at_what_was_there(topic: TopicFactory, admin: AdminClient) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 5)
    with planner_of(orders, {"maxOffsetsPerTrigger": 3, "minOffsetsPerTrigger": 3}) as planner:
        planner.stop_at_latest()
        orders.produce(b"late")
        add_partitions(admin, orders, 2)
        orders.produce(b"late", partition=1)
        end, ranges = next_batch(planner, planner.initial())
        assert ranges == [OffsetRange(orders.name, 0, 0, 3)]
        end, ranges = next_batch(planner, end)
        # Fewer than minOffsetsPerTrigger, but there will be no more in this run.
        assert ranges == [OffsetRange(orders.name, 0, 3, 5)]
        assert next_batch(planner, end) == (end, [])


def test_once_takes_everything_whatever_the_limits(topic: TopicFactory) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 5)
    options = {"maxOffsetsPerTrigger": 2, "minOffsetsPerTrigger": 2, "maxRatePerPartition": 1}
    with planner_of(orders, options) as planner:
        start = planner.initial()
        end = planner.advance(start, everything=True)
        assert planner.begin(start, end).ranges == [OffsetRange(orders.name, 0, 0, 5)]


def test_too_few_records_wait_for_more_until_they_have_waited_long_enough(
    topic: TopicFactory,
) -> None:
    orders, clock = topic(), ManualClock()
    orders.produce(b"x")
    options = {"minOffsetsPerTrigger": 3, "maxTriggerDelay": "15m"}
    with planner_of(orders, options, clock) as planner:
        end, ranges = next_batch(planner, planner.initial())
        assert ranges == [OffsetRange(orders.name, 0, 0, 1)], "the first batch does not wait"
        orders.produce(b"x", b"x")
        assert next_batch(planner, end) == (end, [])
        orders.produce(b"x")
        end, ranges = next_batch(planner, end)
        assert ranges == [OffsetRange(orders.name, 0, 1, 4)]
        orders.produce(b"x")
        clock.sleep(15 * 60 - 1)
        assert next_batch(planner, end) == (end, [])
        clock.sleep(1)
        end, ranges = next_batch(planner, end)
        assert ranges == [OffsetRange(orders.name, 0, 4, 5)]


def test_how_long_too_few_wait_counts_from_the_last_look_that_was_let_through(
    topic: TopicFactory,
) -> None:
    orders, clock = topic(), ManualClock()
    orders.produce(b"x")
    with planner_of(orders) as before:
        end, _ = next_batch(before, before.initial())
    options = {"minOffsetsPerTrigger": 2, "maxTriggerDelay": "1h"}
    with planner_of(orders, options, clock) as after:
        assert next_batch(after, end) == (end, []), "nothing was there, and nothing was held back"
        orders.produce(b"x")
        clock.sleep(3_599)
        assert next_batch(after, end) == (end, [])
        clock.sleep(1)
        assert next_batch(after, end)[1] == [OffsetRange(orders.name, 0, 1, 2)]


def test_bytes_bound_a_batch_by_the_size_of_the_records_that_come_next(topic: TopicFactory) -> None:
    orders = topic(2)
    orders.produce(*[b"x" * 1_000] * 200)
    orders.produce(*[b"x" * 1_000] * 200, partition=1)
    orders.produce(*[b"x" * 10] * 2_000)
    with planner_of(orders, {"maxBytesPerTrigger": 100_000}) as planner:
        end, ranges = next_batch(planner, planner.initial())
        assert 90 <= sum(r.count for r in ranges) <= 100
        _, small = next_batch(planner, {**end, orders.name: {"0": 200, "1": 200}})
        assert sum(r.count for r in small) == 2_000
