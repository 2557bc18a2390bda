"""A journal as the planner sees it: lanes, times, sizes and what is lost."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.journal.journals import TIME_MS, fill
from tests.journal.samples import damage, journal_at
from tests.services.examples import examples
from tests.services.planners import next_batch

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import DataLossError
from headrace.gate.source.planner import StreamPlanner
from headrace.journal import Journal, Records, repair
from headrace.journal.journal_log import JournalLog
from headrace.journal.journal_options import JournalOptions, parse_options


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Path]:
    """Places for journals, one after the other."""
    return (tmp_path / f"{number}" / "events" for number in range(10_000))


def write(path: Path, *lanes: Sequence[tuple[int, int]]) -> Journal:
    """A journal whose lanes have blocks of so many records of so many bytes each."""
    journal = journal_at(path)
    for lane, blocks in enumerate(lanes):
        with journal.writer(lane) as writer:
            for records, size in blocks:
                writer.append(Records.of([b"x" * size] * records, timestamp_ms=TIME_MS))
    return journal


def first_ranges(path: Path, **options: object) -> list[OffsetRange]:
    """Return the ranges that the first batch of a stream reads."""
    parsed = parsed_options(path, **options)
    with closing(StreamPlanner(JournalLog(parsed), parsed.shared)) as planner:
        return next_batch(planner, planner.initial())[1]


def log_of(path: Path, **options: object) -> JournalLog:
    return JournalLog(parsed_options(path, **options))


def parsed_options(path: Path, **options: object) -> JournalOptions:
    given = {"path": str(path)} | {name: str(value) for name, value in options.items()}
    return parse_options(given, streaming=True)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_query_that_has_read_beyond_a_lane_s_end_does_not_go_on(
    tmp_path: Path, fail: str
) -> None:
    """The journal was put back as it was earlier, with its marks."""
    path = tmp_path / "events"
    write(path, [(3, 1)])
    shutil.copytree(path, tmp_path / "backup")
    with Journal.open(str(path)).writer(0) as writer:
        writer.append(Records.of([b"x"] * 4, timestamp_ms=TIME_MS))
    parsed = parsed_options(path, failOnDataLoss=fail)
    with closing(StreamPlanner(JournalLog(parsed), parsed.shared)) as planner:
        end, read = next_batch(planner, planner.initial())
        assert [(each.start, each.until) for each in read] == [(0, 7)]
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "backup", path)
        with pytest.raises(DataLossError, match=r"ends at offset 3, but .* --reached LANE:OFFSET"):
            next_batch(planner, end)
        repair(Journal.open(str(path)), {0: 7})
        with Journal.open(str(path)).writer(0) as writer:
            writer.append(Records.of([b"y"], timestamp_ms=TIME_MS))
        _, read = next_batch(planner, end)
        assert [(each.start, each.until) for each in read] == [(7, 8)]


blocks = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 300)), min_size=1, max_size=7)
"""Too few to be packed: records of a pack count as if all had its mean size."""


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=blocks, most_bytes=st.integers(1, 20_000))
def test_a_batch_of_one_lane_has_all_records_that_fit_into_the_bytes_and_no_more(
    paths: Iterator[Path], written: list[tuple[int, int]], most_bytes: int
) -> None:
    path = next(paths)
    write(path, written)
    sizes = [size for records, size in written for _ in range(records)]
    fitting = sum(total <= most_bytes for total in accumulate(sizes))
    (batch,) = first_ranges(path, maxBytesPerTrigger=most_bytes)
    # Rounding may cost one record; and one is read even if it is too large.
    assert max(1, fitting - 1) <= batch.count <= max(1, fitting)


def test_lanes_share_the_bytes_of_a_batch(tmp_path: Path) -> None:
    write(tmp_path / "events", [(10, 1_000)] * 20, [(10, 1_000)] * 20)
    ranges = first_ranges(tmp_path / "events", maxBytesPerTrigger=100_000)
    assert [each.count for each in ranges] == [50, 50]


def test_records_without_a_byte_cost_nothing(tmp_path: Path) -> None:
    write(tmp_path / "events", [(10, 0), (10, 100)])
    (batch,) = first_ranges(tmp_path / "events", maxBytesPerTrigger=500)
    assert batch.count in (14, 15)


def test_what_is_lost_has_no_size_and_is_told_for_the_offsets_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "events"
    journal = write(path, [(10, 100), (10, 900), (10, 300)])
    damage(journal, 10)
    repair(journal)
    log, lane = log_of(path, maxBytesPerTrigger=10**9), TopicPartition("events", 0)
    assert log.sizes({lane: 0}, {lane: 30}) == {"events": 200}
    assert log.sizes({lane: 12}, {lane: 30}) == {"events": 300}
    assert log.sizes({lane: 30}, {lane: 30}) == {}
    assert log.lost([OffsetRange("events", 0, 0, 30)]) == [OffsetRange("events", 0, 10, 20)]
    assert log.lost([OffsetRange("events", 0, 15, 18)]) == [OffsetRange("events", 0, 15, 18)]
    assert log.lost([OffsetRange("events", 0, 20, 30)]) == []


def test_a_time_is_the_first_block_that_reaches_it(tmp_path: Path) -> None:
    fill(tmp_path / "events", {0: [10, 20, 30], 1: [5]})
    log = log_of(tmp_path / "events")
    one, other = TopicPartition("events", 0), TopicPartition("events", 1)
    assert log.at_timestamps({one: TIME_MS + 500, other: TIME_MS}) == {one: 10, other: 0}
    assert log.at_timestamps({one: TIME_MS + 2_000, other: TIME_MS + 1}) == {one: 30, other: None}
