"""A lane that is put back from an older copy and then written on, beyond what a query has read.

Each record's value says which life of the lane it is of, so that what a query reads shows by itself
whose records it has.
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.gate.execution.queries import finish
from tests.journal.journals import TIME_MS
from tests.journal.queries import Query
from tests.journal.samples import damage, segments_of, stored
from tests.services.examples import examples
from tests.services.queries import sentence

from headrace.errors import DataLossError, OptionError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger
from headrace.journal import Journal, JournalFindingKind, Records, repair, verify

REFUSED = r"is not the lane that this query has read.* new checkpoint"


def write(path: Path, life: str, *counts: int, lane: int = 0) -> None:
    """Append blocks of so many records, whose values are their life's name and their offsets."""
    with Journal.open(str(path), create=True).writer(lane) as writer:
        for count in counts:
            values = [
                f"{life}{offset}".encode() for offset in range(writer.end, writer.end + count)
            ]
            writer.append(Records.of(values, timestamp_ms=TIME_MS))


def put_back(copy: Path, path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(copy, path)


def values(life: str, start: int, until: int) -> list[str]:
    return [f"{life}{offset}" for offset in range(start, until)]


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Path]:
    """Folders, one after the other."""
    return (tmp_path / f"{number}" for number in range(10_000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with the blocks [0, 3) and [3, 10); in backup is what it was before the second."""
    path = tmp_path / "orders"
    write(path, "a", 3)
    shutil.copytree(path, tmp_path / "backup")
    write(path, "a", 7)
    return path


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_gated_query_does_not_go_on_in_a_lane_that_is_another_one(
    spark: SparkSession, path: Path, tmp_path: Path, fail: str
) -> None:
    read: list[str] = []

    def handler(df: Any, _batch: Batch) -> None:
        read.extend(row.value.decode() for row in df.orderBy("offset").collect())

    gate = Gate("orders", interval="1 second", ledger=f"sqlite:///{tmp_path}/headrace.db")

    def run() -> None:
        df = gate.read(spark, "journal").option("failOnDataLoss", fail).load(str(path))
        writer = gate.write(df, handler).option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(writer.trigger(availableNow=True).start())

    run()
    assert read == values("a", 0, 10)
    put_back(tmp_path / "backup", path)
    write(path, "b", 10)
    with pytest.raises(StreamingQueryException) as raised:
        run()
    assert "is not the lane that this query has read" in sentence(raised.value)
    assert read == values("a", 0, 10)


def test_an_older_checkpoint_of_a_healthy_lane_goes_on_once_it_is_adopted(
    path: Path, tmp_path: Path
) -> None:
    """The checksum that it has is of the block before its own offset, and no other."""
    url = f"sqlite:///{tmp_path}/headrace.db"
    options = {"headrace.gate": "orders", "headrace.ledger": url, "maxOffsetsPerTrigger": 5}
    query = Query(path, **options)
    read = query.run()
    older = query.offset
    read += query.run()
    query.offset = older
    query.start_again()
    with pytest.raises(OptionError, match="the checkpoint is an older copy"):
        query.run()
    with Ledger.open(url) as ledger:
        for batch in ledger.batches.newest("orders"):
            assert ledger.batches.succeed(batch.batch_key)
        ledger.operator_limits.adopt("orders", older["@checkpoint"], "ops", "it was restored")
    write(path, "a", 3)
    query.start_again()
    read += query.run()
    assert read == values("a", 0, 13)


@pytest.mark.integration
@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("limit", [1, 4, 10, 1_000])
@pytest.mark.parametrize("counts", [(7, 5), (12,), (2, 2, 2, 2, 2)])
def test_it_is_refused_wherever_blocks_begin_and_batches_end(
    path: Path, tmp_path: Path, fail: str, limit: int, counts: tuple[int, ...]
) -> None:
    query = Query(path, maxOffsetsPerTrigger=limit, failOnDataLoss=fail)
    read: list[str] = []
    while batch := query.run():
        read += batch
    assert read == values("a", 0, 10)
    put_back(tmp_path / "backup", path)
    write(path, "b", *counts)
    assert verify(Journal.open(str(path))).whole
    for _ in range(2):
        with pytest.raises(DataLossError, match=REFUSED):
            query.run()


def test_it_is_refused_at_once_where_the_lane_ends_just_there(path: Path, tmp_path: Path) -> None:
    query = Query(path)
    query.run()
    put_back(tmp_path / "backup", path)
    write(path, "b", 7)
    query.start_again()
    with pytest.raises(DataLossError, match=REFUSED):
        query.run()


@pytest.mark.parametrize(
    ("limit", "then"),
    [(3, [values("b", 3, 6), values("b", 6, 9)]), (2, [["a2", "b3"], values("b", 4, 6)])],
)
def test_a_query_that_has_read_no_further_than_the_copy_goes_on(
    path: Path, tmp_path: Path, limit: int, then: list[list[str]]
) -> None:
    """At the copy's end, and within a block that it has."""
    query = Query(path, maxOffsetsPerTrigger=limit)
    assert query.run() == values("a", 0, limit)
    put_back(tmp_path / "backup", path)
    write(path, "b", 10)
    assert [query.run(), query.run()] == then


def test_a_lane_that_is_put_back_as_it_was_is_the_same(path: Path, tmp_path: Path) -> None:
    query = Query(path)
    query.run()
    shutil.copytree(path, tmp_path / "newer")
    put_back(tmp_path / "newer", path)
    write(path, "a", 2, 3)
    assert query.run() == values("a", 10, 15)


def test_a_lane_without_new_records_keeps_what_is_known_of_it(path: Path, tmp_path: Path) -> None:
    write(path, "c", 4, lane=1)
    query = Query(path)
    query.run()
    write(path, "c", 4, lane=1)
    assert query.run() == values("c", 4, 8)
    put_back(tmp_path / "backup", path)
    write(path, "c", 8, lane=1)
    write(path, "b", 10)
    with pytest.raises(DataLossError, match=REFUSED):
        query.run()


def test_what_was_pruned_is_not_asked_for(path: Path) -> None:
    query = Query(path)
    query.run()
    journal = Journal.open(str(path))
    with segments_of(1):
        write(path, "a", 5)
        assert journal.remove_before(0, 10) == 10
        assert query.run() == values("a", 10, 15)
        write(path, "a", 5, 5)
    assert journal.remove_before(0, 15) == 15
    assert query.run() == values("a", 15, 25)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("limit", [2, 5, 10, 12])
def test_a_repair_does_not_stop_a_query(path: Path, first: int, limit: int) -> None:
    """The damaged block is before the query's position, around it, or behind it."""
    write(path, "a", 4)
    query = Query(path, maxOffsetsPerTrigger=limit, failOnDataLoss="false")
    read = query.run()
    journal = Journal.open(str(path))
    damage(journal, first)
    repair(journal)
    write(path, "a", 3)
    for _ in range(10):
        read += query.run()
    lost = {offset for each in journal.lost(0) for offset in range(each.first, each.until)}
    kept = [f"a{offset}" for offset in range(17) if offset < limit or offset not in lost]
    assert read == kept


def test_after_the_lane_was_declared_lost_up_to_there_the_query_goes_on(
    path: Path, tmp_path: Path
) -> None:
    query = Query(path)
    query.run()
    put_back(tmp_path / "backup", path)
    repair(Journal.open(str(path)), {0: 10})
    write(path, "b", 4)
    assert query.run() == values("b", 10, 14)


def test_segments_of_two_copies_are_found_by_verify(path: Path, tmp_path: Path) -> None:
    with segments_of(1):
        write(path, "a", 7)
        shutil.copytree(path, tmp_path / "first")
        put_back(tmp_path / "backup", path)
        write(path, "b", 7)
        write(path, "b", 7, 5)
    name = f"0/{10:020d}.segment"
    shutil.copy(tmp_path / "first" / name, path / name)
    found = verify(Journal.open(str(path)))
    assert not found.whole
    assert {each.kind for each in found.findings} == {JournalFindingKind.MIXED}
    assert repair(Journal.open(str(path))) == ()


COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=3)
OPERATIONS: st.SearchStrategy[tuple[str, list[Any]]] = st.one_of(
    st.tuples(st.sampled_from(["write", "put back and write"]), COUNTS),
    st.tuples(st.just("run"), st.lists(st.none(), min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["start again", "copy", "prune"]), st.just([])),
)


@examples(80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(OPERATIONS, min_size=4, max_size=20), limit=st.integers(1, 9))
def test_what_lies_below_a_query_s_position_is_what_it_has_read(
    paths: Iterator[Path], operations: list[tuple[str, list[Any]]], limit: int
) -> None:
    """Whatever is written, put back and pruned: a query goes on in no lane but the one it knows."""
    path, backup = next(paths) / "orders", next(paths)
    write(path, "0.", 2)
    shutil.copytree(path, backup)
    query, read = Query(path, maxOffsetsPerTrigger=limit, failOnDataLoss="false"), dict[int, str]()
    for number, (what, counts) in enumerate(operations, 1):
        match what:
            case "write":
                write(path, f"{number}.", *counts)
            case "put back and write":
                put_back(backup, path)
                write(path, f"{number}.", *counts)
            case "run":
                for _ in counts:
                    with suppress(DataLossError):
                        batch = query.run_batch()
                        assert not batch.keys() & read.keys()
                        read |= batch
                        there = {o: v.decode() for o, v in stored(path / "0").items()}
                        below = {o: v for o, v in there.items() if o <= max(read)}
                        assert below.items() <= read.items()
            case "start again":
                query.start_again()
            case "copy":
                shutil.rmtree(backup)
                shutil.copytree(path, backup)
            case "prune":
                Journal.open(str(path)).remove_before(0, max(read, default=-1) + 1)
