"""The cap on a journal: senders wait while it is reached, and nothing is lost by that."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from tests.journal.receivers.serving import in_loop, until

from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.journal import Journal
from headrace.journal.receivers import CapSettings, Hosting, Intake, IntakeSettings, RetryAfter
from headrace.journal.receivers.journal_cap import JournalCap
from headrace.journal.records import Records


def some(text: bytes = b"x", age_s: int = 0) -> Records:
    """Return one record, which fills more than a block of the disk, of so long ago."""
    timestamp_ms = time.time_ns() // 1_000_000 - age_s * 1_000
    return Records.of([text + os.urandom(5_000)], timestamp_ms=timestamp_ms)


@in_loop
async def test_senders_wait_while_the_journal_is_at_its_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.journal.lane_writer.SEGMENT_BYTES", 1)  # one for each block
    journal = Journal.open(str(tmp_path / "orders"), create=True)
    with journal.writer(0) as writer, journal.writer(1) as other:
        async with Intake(writer.append, IntakeSettings(block_interval_ms=1)) as intake:
            await intake.submit(some())
            other.append(some())
            most = journal.allocated_bytes() + 1
            cap = JournalCap(journal, 0, CapSettings(max_journal_bytes=most), None)
            await cap.apply(intake)
            assert not intake.refusing

            for text in (b"y", b"w", b"v"):
                other.append(some(text))
            await cap.apply(intake)
            assert "The journal orders has" in (intake.refusing or "")
            assert isinstance(refused := intake.try_submit(some()), RetryAfter)
            assert refused.refusing == intake.refusing
            waiting = asyncio.create_task(intake.submit(some(b"z")))
            await asyncio.sleep(0.05)
            assert not waiting.done()

            journal.remove_before(1, 4)
            await cap.apply(intake)
            assert intake.refusing is None
            assert (await waiting).offsets.start == 1


def test_what_a_journal_takes_is_what_the_disk_says(tmp_path: Path) -> None:
    """A segment takes whole blocks of the disk."""
    journal = Journal.open(str(tmp_path / "orders"), create=True)
    with journal.writer(0) as writer:
        for _ in range(100):
            writer.append(Records.of([b"x"], timestamp_ms=0))
    files = [path for path in (tmp_path / "orders").rglob("*") if path.is_file()]
    of_lanes = [path for path in files if path.parent.name == "0"]
    assert journal.allocated_bytes() == sum(path.stat().st_blocks * 512 for path in of_lanes)
    assert journal.allocated_bytes() > sum(block.stored_bytes for block in journal.blocks(0))


@in_loop
async def test_senders_wait_while_what_is_unread_is_old(tmp_path: Path) -> None:
    journal = Journal.open(str(tmp_path / "orders"), create=True)
    with (
        Ledger.open(f"sqlite:///{tmp_path}/headrace.db") as ledger,
        journal.writer(0) as writer,
    ):
        async with Intake(writer.append, IntakeSettings(block_interval_ms=1)) as intake:
            young = JournalCap(journal, 0, CapSettings(max_unread_s=3_600), ledger)
            old = JournalCap(journal, 0, CapSettings(max_unread_s=1e-6), ledger)
            await old.apply(intake)
            assert intake.refusing is None  # an empty lane has nothing unread
            await intake.submit(some())
            await young.apply(intake)
            assert intake.refusing is None
            await old.apply(intake)
            assert "has records that are unread for" in (intake.refusing or "")
            (block,) = journal.blocks(0)
            ledger.gates.declare("clicks", interval_ms=1_000, source="journal", estimator="pid")
            planned = PlannedRange(
                OffsetRange(journal.name, 0, 0, block.until), topic_id=journal.id
            )
            batch = PlannedBatch("clicks", "checkpoint", (planned,), "rate", "")
            key = ledger.batches.begin(batch).batch_key
            await old.apply(intake)
            assert "has records that are unread for" in (intake.refusing or "")
            ledger.batches.succeed(key)  # no batch comes after it while senders wait
            await old.apply(intake)
            assert intake.refusing is None


@in_loop
async def test_it_is_kept_while_the_receiver_runs(tmp_path: Path) -> None:
    journal = Journal.open(str(tmp_path / "orders"), create=True)
    with journal.writer(0) as writer:
        async with Intake(writer.append, IntakeSettings(block_interval_ms=1)) as intake:
            most = journal.allocated_bytes() + 1
            cap = JournalCap(journal, 0, CapSettings(max_journal_bytes=most), None)
            await cap.apply(intake)
            keeping = asyncio.create_task(cap.keep(intake))
            await intake.submit(Records.of([b"a" * 600, b"b"], timestamp_ms=0))
            await until(lambda: intake.refusing)
            keeping.cancel()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_journal_bytes": 0}, "max_journal_bytes is 0 bytes"),
        ({"max_unread_s": 0}, "max_unread_s is 0 s"),
        ({"max_unread_s": float("nan")}, "max_unread_s is nan s"),
    ],
)
def test_a_wrong_cap_is_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        CapSettings(**wrong)  # type: ignore[arg-type]


def test_a_cap_below_a_block_or_without_what_it_needs_is_refused() -> None:
    with pytest.raises(OptionError, match="less than one block of 8388608 bytes; raise max"):
        Hosting("orders", cap=CapSettings(max_journal_bytes=1_000))
    with pytest.raises(OptionError, match="max_unread_s is set without a gate"):
        Hosting("orders", cap=CapSettings(max_unread_s=5))


@in_loop
async def test_what_is_unread_is_as_old_as_its_block_in_seconds(tmp_path: Path) -> None:
    journal = Journal.open(str(tmp_path / "orders"), create=True)
    with (
        Ledger.open(f"sqlite:///{tmp_path}/headrace.db") as ledger,
        journal.writer(0) as writer,
    ):
        async with Intake(writer.append, IntakeSettings(block_interval_ms=1)) as intake:
            await intake.submit(some(age_s=600))
            for max_unread_s, is_refusing in ((3_600, False), (300, True)):
                cap = JournalCap(journal, 0, CapSettings(max_unread_s=max_unread_s), ledger)
                await cap.apply(intake)
                assert (intake.refusing is not None) is is_refusing
