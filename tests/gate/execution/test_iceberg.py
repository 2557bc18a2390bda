"""An Iceberg table has each batch once, as PyIceberg reads it from its files."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import BatchSplitError
from headrace.gate.execution.batch import Batch

SCHEMA = pa.schema([("value", pa.string()), ("offset", pa.int64())])


pytestmark = pytest.mark.nightly  # a catalog and files, and some seconds of PyIceberg


def batch(key: str) -> Batch:
    return Batch(key, None, (), 1, "live", 1)


TEN, FIFTY = batch("the tenth"), batch("the fiftieth")


def frame(*values: str, during: Callable[[], object] = lambda: None) -> DataFrame:
    """Return a batch's frame, as Spark would; computing it calls ``during``."""

    def to_arrow() -> pa.Table:
        during()
        return pa.table({"value": values, "offset": range(len(values))}, schema=SCHEMA)

    return cast(DataFrame, SimpleNamespace(toArrow=to_arrow))


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return open_catalog(tmp_path)


def open_catalog(folder: Path) -> SqlCatalog:
    """As a process of its own does."""
    (folder / "lake").mkdir(exist_ok=True)
    uri = f"sqlite:///{folder}/catalog.db"
    return SqlCatalog("lake", uri=uri, warehouse=f"file://{folder}/lake")


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    catalog.create_namespace("shop")
    # A conflict is tried again at once.
    quick = {"commit.retry.min-wait-ms": "1", "commit.retry.num-retries": "20"}
    return catalog.create_table("shop.orders", SCHEMA, properties=quick)


def again(table: Table) -> Table:
    """The same table as another process has loaded it."""
    return cast(Table, cast(Any, table.catalog).load_table("shop.orders"))


def found(table: Table) -> list[str]:
    return sorted(again(table).scan().to_arrow()["value"].to_pylist())


def test_each_batch_is_appended_once_in_whatever_order_they_come(table: Table) -> None:
    written = [each.append_iceberg(frame(each.key), table) for each in (FIFTY, TEN, FIFTY, TEN)]
    assert written == [True, True, False, False]
    assert found(table) == [FIFTY.key, TEN.key]


def test_a_table_that_was_loaded_before_does_not_write_what_another_process_wrote(
    table: Table,
) -> None:
    loaded = again(table)
    assert TEN.append_iceberg(frame("one"), table)
    assert not TEN.append_iceberg(frame("another"), loaded)
    assert found(table) == ["one"]
    assert loaded.current_snapshot() == table.current_snapshot()


def test_another_run_that_was_faster_is_seen_in_the_commit(table: Table) -> None:
    """It commits between the first look and the commit."""
    other = again(table)
    slow = frame("slow", during=lambda: TEN.append_iceberg(frame("fast"), other))
    assert not TEN.append_iceberg(slow, table)
    assert found(table) == ["fast"]


def test_other_batches_that_were_faster_are_no_reason_not_to_write(table: Table) -> None:
    other = again(table)
    slow = frame("slow", during=lambda: FIFTY.append_iceberg(frame("fast"), other))
    assert TEN.append_iceberg(slow, table)
    assert found(table) == ["fast", "slow"]


def test_runs_at_the_same_time_append_each_batch_once(table: Table, tmp_path: Path) -> None:
    """Four runs of each of three batches; what all of them have written would be 12 rows."""
    together = Barrier(4)

    def run_all(_run: int) -> int:
        own = open_catalog(tmp_path).load_table("shop.orders")
        together.wait()
        keys = [f"batch {number}" for number in range(3)]
        return sum(batch(key).append_iceberg(frame(key), own) for key in keys)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(run_all, range(4))) == 3
    assert found(table) == ["batch 0", "batch 1", "batch 2"]


def test_a_commit_whose_answer_is_lost_is_found_by_the_next_run(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = table.catalog.commit_table

    def lose_the_answer(*arguments: Any) -> Any:
        commit(*arguments)
        raise CommitStateUnknownException("the connection was cut")

    with monkeypatch.context() as patch:
        patch.setattr(table.catalog, "commit_table", lose_the_answer)
        with pytest.raises(CommitStateUnknownException):
            TEN.append_iceberg(frame("one"), table)
    assert not TEN.append_iceberg(frame("one"), table)
    assert found(table) == ["one"]


def test_several_writes_of_one_handler_have_names(table: Table) -> None:
    written = [
        TEN.append_iceberg(frame(name), table, name) for name in ("orders", "returns", "orders")
    ]
    assert written == [True, True, False]
    assert found(table) == ["orders", "returns"]


def test_a_child_is_not_written_if_a_batch_that_it_was_split_off_is(table: Table) -> None:
    child = Batch("a child", None, (), 1, "live", 1, parent_keys=("a half", TEN.key))
    other = Batch("another", None, (), 1, "live", 1, parent_keys=("a half", FIFTY.key))
    TEN.append_iceberg(frame("all"), table)
    assert not child.append_iceberg(frame("some"), table)
    assert other.append_iceberg(frame("other"), table)
    assert found(table) == ["all", "other"]


def test_a_batch_is_not_written_once_a_part_of_it_is(table: Table) -> None:
    """Neither if that is seen before the write, nor if it comes while the rows are computed."""
    part = Batch("a part", None, (), 1, "live", 1, parent_keys=("a half", TEN.key))
    other = again(table)
    slow = frame("all", during=lambda: part.append_iceberg(frame("some"), other))
    for late in (slow, frame("all")):
        with pytest.raises(BatchSplitError, match=r"parts of batch 'the tenth', so the batch"):
            TEN.append_iceberg(late, table)
    assert TEN.append_iceberg(frame("returned"), table, "returns"), "that is another write"
    assert FIFTY.append_iceberg(frame("other"), table)
    assert found(table) == ["other", "returned", "some"]


def test_what_was_rolled_back_is_written_again(table: Table) -> None:
    FIFTY.append_iceberg(frame("kept"), table)
    before = table.current_snapshot()
    assert before is not None
    TEN.append_iceberg(frame("undone"), table)
    table.manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    assert found(table) == ["kept"]
    assert TEN.append_iceberg(frame("again"), table)
    assert not FIFTY.append_iceberg(frame("kept"), table)
    assert found(table) == ["again", "kept"]


def test_what_was_expired_is_forgotten(table: Table) -> None:
    """As the page on sinks says, so that nobody expires what may run again."""
    TEN.append_iceberg(frame("ten"), table)
    first = table.current_snapshot()
    assert first is not None
    FIFTY.append_iceberg(frame("fifty"), table)
    table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    assert not FIFTY.append_iceberg(frame("fifty"), table)
    assert TEN.append_iceberg(frame("ten"), table)
    assert found(table) == ["fifty", "ten", "ten"]


def test_what_the_table_cannot_take_fails_and_leaves_nothing(table: Table) -> None:
    other = cast(DataFrame, SimpleNamespace(toArrow=lambda: pa.table({"price": [1]})))
    with pytest.raises(ValueError, match="price"):
        TEN.append_iceberg(other, table)
    assert TEN.append_iceberg(frame("one"), table)
    assert found(table) == ["one"]


def test_a_frame_of_sparks_is_appended(spark: SparkSession, table: Table) -> None:
    df = spark.sql("SELECT 'a' AS value, 1L AS offset UNION ALL SELECT 'b', 2L")
    assert [TEN.append_iceberg(df, table) for _ in range(2)] == [True, False]
    assert found(table) == ["a", "b"]
