from collections.abc import Mapping

import pytest
from headrace.core.ranges import OffsetRange, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataLossError
from headrace.source.footing import Footing, Loss, find_footing
from headrace.source.log import Topic
from headrace.source.positions import StreamOffset

TP = TopicPartition("orders", 0)


def footing(
    position: int | None,
    log: tuple[int, int] | None,
    *,
    before: str | None = "one",
    now: str | None = "one",
    first: bool = False,
    cut: str | None = None,
) -> Footing:
    """For one partition: our position, its log, and the topic's id when last read and now."""
    start = StreamOffset(
        positions={} if position is None else {TP: position},
        topic_ids={} if before is None else {TP.topic: before},
        first=first,
    )
    if log is None:
        return find_footing(start, {}, {}, {})
    topics = {TP.topic: Topic(now, (0,))}
    return find_footing(start, topics, {TP: log[0]}, {TP: log[1]}, cut=cut)


def missing(found: Footing) -> list[tuple[int, int]]:
    return [(loss.missing.start, loss.missing.until) for loss in found.losses]


@pytest.mark.parametrize("position", [3, 5, 9])
def test_a_position_in_the_log_is_where_the_next_batch_begins(position: int) -> None:
    assert footing(position, (3, 9)) == Footing({TP: position}, {}, {"orders": "one"}, [])


def test_the_first_batch_writes_down_where_it_begins() -> None:
    assert footing(5, (3, 9), first=True).begins == {TP: 5}


def test_a_new_partition_begins_at_its_start() -> None:
    assert footing(None, (0, 9)) == Footing({TP: 0}, {TP: 0}, {"orders": "one"}, [])


def test_a_new_partition_whose_start_is_gone_has_lost_it() -> None:
    found = footing(None, (4, 9))
    assert found.current == found.begins == {TP: 4}
    assert missing(found) == [(0, 4)]
    assert "new to this query" in found.losses[0].why


def test_where_no_offset_is_given_twice_a_position_beyond_the_end_is_refused() -> None:
    """Records that come there would be taken for those that were read."""
    with pytest.raises(DataLossError, match=r"ends at offset 5, but .* up to 9: .*; do that"):
        footing(9, (3, 5), cut="do that")
    assert footing(5, (3, 5), cut="do that").current == {TP: 5}
    assert footing(9, (3, 5), before="one", now="two", cut="do that").current == {TP: 3}


def test_a_position_that_retention_has_passed_moves_to_the_start() -> None:
    found = footing(2, (4, 9))
    assert found.current == found.begins == {TP: 4}
    assert found.losses == [
        Loss(OffsetRange("orders", 0, 2, 4), "the log of orders-0 begins at 4 now")
    ]


def test_a_topic_that_is_gone_is_told_and_left() -> None:
    found = footing(7, None)
    assert (found.current, found.begins, found.topic_ids) == ({}, {}, {})
    assert missing(found) == [(7, 7)]
    assert "orders-0 does not exist any more" in found.losses[0].why


@pytest.mark.parametrize("log", [(0, 0), (0, 5), (0, 7), (0, 90), (7, 9)])
def test_a_topic_made_again_is_read_from_its_start(log: tuple[int, int]) -> None:
    """Also where our position happens to lie in the new log."""
    found = footing(7, log, before="one", now="two")
    assert found.current == {TP: log[0]}
    assert found.topic_ids == {"orders": "two"}
    assert missing(found) == [(7, 7)]
    assert "deleted and created again" in found.losses[0].why


def test_a_log_cut_at_its_end_is_read_on_from_there() -> None:
    found = footing(7, (2, 5))
    assert found.current == found.begins == {TP: 5}
    assert missing(found) == [(7, 7)]
    assert "ends at 5 now, before 7" in found.losses[0].why


@pytest.mark.parametrize(("before", "now"), [(None, None), (None, "one"), ("one", None)])
def test_without_ids_a_log_that_ends_too_early_is_taken_for_a_new_one(
    before: str | None, now: str | None
) -> None:
    found = footing(7, (2, 5), before=before, now=now)
    assert found.current == found.begins == {TP: 2}
    assert missing(found) == [(7, 7)]
    assert footing(4, (2, 5), before=before, now=now).losses == []


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
    found = find_footing(
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
