"""A last block that has lost its name: only the lane's mark has it still.

It is what a damaged file system leaves of records that were acknowledged, and what a power failure
may leave of records that were not. The offsets identify the records that were written.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.journal.journals import fill
from tests.operate.cli.outcomes import invoke
from tests.services.ledgers import new_ledger
from tests.services.planners import next_batch
from tests.services.queries import sentence

import headrace
from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import CorruptionError
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.gate.source.planner import StreamPlanner
from headrace.gate.source.read_bounds import Edge, ReadBound, bounded_ranges
from headrace.journal import Journal, repair, verify
from headrace.journal.journal_log import JournalLog
from headrace.journal.journal_options import parse_options
from headrace.testing import ManualClock

TO_DO = r"start the receiver of the lane, or run `headrace journal repair .*/orders`"
LANE = TopicPartition("orders", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with the blocks [0, 3), [3, 10) and [10, 12) in lane 0, the last without a name."""
    fill(tmp_path / "orders", {0: [3, 7, 2]})
    block_of(tmp_path / "orders").unlink()
    return tmp_path / "orders"


def block_of(path: Path) -> Path:
    return path / "0" / f"{10:020d}.block"


def named_again(path: Path) -> None:
    """Give the block its name, as a writer does that was about to."""
    if not block_of(path).exists():
        os.link(path / "0" / f"{12:020d}.end", block_of(path))


def stream_log(path: Path, clock: ManualClock) -> JournalLog:
    return JournalLog(parse_options({"path": str(path)}, streaming=True), clock)


def bounded_log(path: Path, clock: ManualClock) -> JournalLog:
    return JournalLog(parse_options({"path": str(path)}, streaming=False), clock)


@contextmanager
def planner_of(path: Path, clock: ManualClock) -> Iterator[StreamPlanner]:
    options = parse_options({"path": str(path)}, streaming=True)
    with closing(StreamPlanner(stream_log(path, clock), options.shared, clock)) as planner:
        yield planner


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_a_journal_is_not_called_whole(path: Path) -> None:
    result = invoke("", "journal", "verify", str(path), width=200)
    assert result.exit_code == 4
    words = " ".join(result.stdout.split())
    assert "orders: BROKEN; 10 records in 2 blocks of 1 lane can be read" in words
    assert "spare 0/00000000000000000012.end [10, 12): " in words
    assert "has lost its name" in words
    assert invoke("", "journal", "repair", str(path)).exit_code == 0
    assert invoke("", "journal", "verify", str(path)).exit_code == 0


def test_a_block_that_gets_its_name_while_the_journal_is_verified_is_no_finding(path: Path) -> None:
    clock = ManualClock(on_sleep=lambda: named_again(path))
    found = verify(Journal.open(str(path)), clock=clock)
    assert (found.whole, found.findings) == (True, ())
    assert clock.monotonic() > 0


def test_a_bounded_read_up_to_the_latest_offset_is_refused(spark: SparkSession, path: Path) -> None:
    headrace.register(spark)
    df = spark.read.format("headrace-journal").load(str(path))
    with pytest.raises(PySparkException) as raised:
        df.collect()
    said = sentence(raised.value)
    assert said.startswith("CorruptionError: ")
    assert "offsets [10, 12) of lane 0" in said
    assert "journal repair" in said
    some = {"endingOffsets": json.dumps({"orders": {"0": 10}})}
    assert spark.read.format("headrace-journal").options(**some).load(str(path)).count() == 10


def test_a_bounded_read_waits_for_a_writer_that_is_about_to_name_its_block(path: Path) -> None:
    clock = ManualClock(on_sleep=lambda: named_again(path))
    ends = bounded_ranges(
        bounded_log(path, clock),
        ReadBound("startingOffsets", Edge.EARLIEST),
        ReadBound("endingOffsets", Edge.LATEST),
        "error",
    )
    assert ends == [OffsetRange("orders", 0, 0, 12)]
    clock = ManualClock()
    block_of(path).unlink()
    with pytest.raises(CorruptionError, match=TO_DO):
        bounded_log(path, clock).latest([LANE])
    assert 0 < clock.monotonic() < 10


def test_a_read_of_these_very_offsets_says_what_to_do(path: Path) -> None:
    with pytest.raises(CorruptionError, match=TO_DO):
        list(Journal.open(str(path)).read(OffsetRange("orders", 0, 0, 12)))


def test_a_stream_goes_on_without_it_and_says_so_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with planner_of(path, clock) as planner:
        end, ranges = next_batch(planner, planner.initial())
        assert [(each.start, each.until) for each in ranges] == [(0, 10)]
        assert warnings(caplog) == []
        for _ in range(10):
            clock.sleep(1)
            assert next_batch(planner, end) == (end, [])
        (warning,) = warnings(caplog)
        assert "offsets [10, 12) of lane 0 of the journal" in warning
        repair(Journal.open(str(path)))
        end, ranges = next_batch(planner, end)
        assert [(each.start, each.until) for each in ranges] == [(10, 12)]
    assert len(warnings(caplog)) == 1


def test_a_stream_says_nothing_of_a_block_that_gets_its_name(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    with planner_of(path, clock) as planner:
        end, _ = next_batch(planner, planner.initial())
        clock.sleep(1)
        named_again(path)
        end, _ = next_batch(planner, end)
        block_of(path).unlink()
        clock.sleep(60)
        with pytest.raises(headrace.DataLossError, match="ends at offset 10, but"):
            next_batch(planner, end)
    assert warnings(caplog) == []


def test_how_much_is_unread_counts_it(path: Path) -> None:
    assert bounded_log(path, ManualClock()).reached([LANE]) == {LANE: 12}


def test_a_gate_that_has_read_up_to_there_is_not_proven_against_the_journal(
    path: Path, tmp_path: Path
) -> None:
    url, journal = f"sqlite:///{tmp_path}/ledger.db", Journal.open(str(path))
    with new_ledger(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1, source="journal", estimator="pid")
        offsets = PlannedRange(OffsetRange("orders", 0, 0, 10), topic_id=journal.id)
        batch = PlannedBatch("orders", "run", (offsets,), "rate", str(path))
        ledger.batches.succeed(ledger.batches.begin(batch).batch_key)
    result = invoke(url, "verify", "--source", width=200)
    assert result.exit_code != 0
    assert "proven" not in result.stdout.lower().replace("proves", "")
    repair(journal)
    assert invoke(url, "verify", "--source").exit_code == 0
