from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import DataLossError
from headrace.gate.source.log import Topic
from headrace.gate.source.losses import MissingOffsets
from headrace.gate.source.read_bounds import StartOffsets, resolve_start_offsets
from headrace.gate.source.stream_offset import StreamOffset

TP = TopicPartition("orders", 0)


def resolved(
    position: int | None,
    log: tuple[int, int] | None,
    *,
    before: str | None = "one",
    now: str | None = "one",
    first: bool = False,
    cut: str | None = None,
    seen: int | None = None,
) -> StartOffsets:
    """For one partition: our position, its log, and the topic's id when last read and now."""
    start = StreamOffset(
        positions={} if position is None else {TP: position},
        topic_ids={} if before is None else {TP.topic: before},
        first=first,
    )
    ends = {} if seen is None else {TP: seen}
    if log is None:
        return resolve_start_offsets(start, {}, {}, {}, seen=ends)
    topics = {TP.topic: Topic(now, (0,))}
    return resolve_start_offsets(start, topics, {TP: log[0]}, {TP: log[1]}, seen=ends, cut=cut)


def missing(found: StartOffsets) -> list[tuple[int, int]]:
    return [(loss.missing.start, loss.missing.until) for loss in found.losses]


@pytest.mark.parametrize("position", [3, 5, 9])
def test_a_position_in_the_log_is_where_the_next_batch_begins(position: int) -> None:
    assert resolved(position, (3, 9)) == StartOffsets({TP: position}, {}, {"orders": "one"}, [])


def test_the_first_batch_writes_down_where_it_begins() -> None:
    assert resolved(5, (3, 9), first=True).begins == {TP: 5}


def test_a_new_partition_begins_at_its_start() -> None:
    assert resolved(None, (0, 9)) == StartOffsets({TP: 0}, {TP: 0}, {"orders": "one"}, [])


def test_a_new_partition_whose_start_is_gone_has_lost_it() -> None:
    found = resolved(None, (4, 9))
    assert found.current == found.begins == {TP: 4}
    assert missing(found) == [(0, 4)]
    assert "new to this query" in found.losses[0].reason


def test_where_no_offset_is_given_twice_a_position_beyond_the_end_is_refused() -> None:
    """Records that come there would be taken for those that were read."""
    with pytest.raises(DataLossError, match=r"ends at offset 5, but .* up to 9: .*; do that"):
        resolved(9, (3, 5), cut="do that")
    assert resolved(5, (3, 5), cut="do that").current == {TP: 5}
    assert resolved(9, (3, 5), before="one", now="two", cut="do that").current == {TP: 3}


def test_a_position_that_retention_has_passed_moves_to_the_start() -> None:
    found = resolved(2, (4, 9))
    assert found.current == found.begins == {TP: 4}
    assert found.losses == [
        MissingOffsets(OffsetRange("orders", 0, 2, 4), "the log of orders-0 begins at 4 now")
    ]


def test_a_topic_that_is_gone_is_told_and_left() -> None:
    found = resolved(7, None)
    assert (found.current, found.begins, found.out_of_sight) == ({}, {}, {TP: 7})
    assert missing(found) == [(7, 7)]
    assert "orders-0 does not exist any more" in found.losses[0].reason


@pytest.mark.parametrize(("now", "log"), [("one", None), ("two", (0, 5))])
def test_what_was_seen_of_a_topic_that_is_gone_is_lost_with_its_id(
    now: str, log: tuple[int, int] | None
) -> None:
    found = resolved(7, log, now=now, seen=12)
    assert missing(found) == [(7, 12)]
    assert found.losses[0].topic_id == "one"
    assert "had at least these" in found.losses[0].reason


def test_a_topic_that_is_there_again_goes_on_where_it_was() -> None:
    gone = StreamOffset({}, topic_ids={TP.topic: "one"}, out_of_sight={TP: 7})

    def again(topics: Mapping[str, Topic], log: tuple[int, int]) -> StartOffsets:
        return resolve_start_offsets(gone, topics, {TP: log[0]}, {TP: log[1]})

    same = again({TP.topic: Topic("one", (0,))}, (0, 9))
    assert (same.current, same.begins, same.returned) == ({TP: 7}, {TP: 7}, {TP: 7})
    assert (same.losses, same.out_of_sight) == ([], {})
    other = again({TP.topic: Topic("two", (0,))}, (0, 9))
    assert (other.current, other.returned, other.losses) == ({TP: 0}, {}, [])
    still = resolve_start_offsets(gone, {}, {}, {})
    assert (still.out_of_sight, still.topic_ids, still.losses) == ({TP: 7}, gone.topic_ids, [])


@pytest.mark.parametrize("log", [(0, 0), (0, 5), (0, 7), (0, 90), (7, 9)])
def test_a_topic_made_again_is_read_from_its_start(log: tuple[int, int]) -> None:
    """Also where our position happens to lie in the new log."""
    found = resolved(7, log, before="one", now="two")
    assert found.current == {TP: log[0]}
    assert found.topic_ids == {"orders": "two"}
    assert missing(found) == [(7, 7)]
    assert "deleted and created again" in found.losses[0].reason


def test_a_log_cut_at_its_end_is_read_on_from_there() -> None:
    found = resolved(7, (2, 5))
    assert found.current == found.begins == {TP: 5}
    assert missing(found) == [(7, 7)]
    assert "ends at 5 now, before 7" in found.losses[0].reason


@pytest.mark.parametrize(("before", "now"), [(None, None), (None, "one"), ("one", None)])
def test_without_ids_a_log_that_ends_too_early_is_taken_for_a_new_one(
    before: str | None, now: str | None
) -> None:
    found = resolved(7, (2, 5), before=before, now=now)
    assert found.current == found.begins == {TP: 2}
    assert missing(found) == [(7, 7)]
    assert resolved(4, (2, 5), before=before, now=now).losses == []


partitions = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 2))
logs = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda log: (log[0], sum(log)))
ids = st.dictionaries(st.sampled_from("ab"), st.sampled_from(["one", "two"]))


@given(
    st.dictionaries(partitions, st.integers(0, 50)),
    st.dictionaries(partitions, logs),
    ids,
    ids,
    st.booleans(),
)
def test_every_partition_gets_a_place_in_its_log_and_no_loss_goes_untold(
    positions: Mapping[TopicPartition, int],
    cluster: Mapping[TopicPartition, tuple[int, int]],
    before: Mapping[str, str],
    now: Mapping[str, str],
    first: bool,
) -> None:
    start = StreamOffset(positions, topic_ids=before, first=first)
    topics = {
        name: Topic(
            now.get(name), tuple(sorted(tp.partition for tp in cluster if tp.topic == name))
        )
        for name in {tp.topic for tp in cluster}
    }
    found = resolve_start_offsets(
        start,
        topics,
        {tp: log[0] for tp, log in cluster.items()},
        {tp: log[1] for tp, log in cluster.items()},
    )
    told = {loss.missing.topic_partition: loss.missing for loss in found.losses}
    assert len(told) == len(found.losses)
    assert found.current.keys() == cluster.keys()
    for tp, position in found.current.items():
        assert cluster[tp][0] <= position <= cluster[tp][1]
        stays = position == positions.get(tp)
        assert (tp in found.begins) == (first or not stays)
        assert found.begins.get(tp, position) == position
        new = tp not in positions and position == 0
        again = before.get(tp.topic, now.get(tp.topic)) != now.get(tp.topic, before.get(tp.topic))
        assert (tp in told) == ((again and tp in positions) or not (stays or new))
    assert told.keys() - cluster.keys() == positions.keys() - cluster.keys()
    for tp, gone in told.items():
        assert gone.start == positions.get(tp, 0)
        assert gone.until in (gone.start, found.current.get(tp))
