"""A gated query over a journal, killed again and again, processes each record once.

That receivers lose nothing when they are killed `tests/receivers` shows; what they acknowledged is
in the journal, and from there unfinished batches run again.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.recovery.drivers import Driver
from tests.recovery.evidence import collect, require_sound
from tests.recovery.job import Job
from tests.recovery.stories import chance, in_turn
from tests.recovery.test_sigkill import Kill, kills, live_through

from headrace.core.ranges import TopicPartition
from headrace.journal import Journal, Records, prune
from headrace.ledger import Ledger

LANES = 3
RECORDS_PER_KILL = 50  # in each lane: more batches of 60 than are done before the last kill
BLOCK_RECORDS = 7  # so that no batch ends where a block does, but by chance
LONG_AFTER_MS = 10**14


def receive(journal: Journal, until: int) -> None:
    """Give each lane records up to so many, each with its place as its value."""
    for lane in range(LANES):
        with journal.writer(lane) as writer:
            while (start := writer.end) < until:
                values = [
                    f"{lane}/{offset}".encode()
                    for offset in range(start, min(start + BLOCK_RECORDS, until))
                ]
                writer.append(Records.of(values, timestamp_ms=1))


def prune_processed(journal: Journal, job: Job) -> int:
    """Remove what the query is through with; how many records that is."""
    with Ledger.open(job.ledger) as ledger:
        lanes = prune(journal, ledger, 0, now_ms=LONG_AFTER_MS, unread=False)
    return sum(lane.records for lane in lanes)


def survive(planned: Sequence[Kill], folder: Path) -> None:
    """Kill drivers while the journal grows and is pruned, and judge what is there."""
    job = Job(servers="", topic="events", folder=str(folder))
    journal = Journal.open(str(folder / job.topic), create=True)
    removed = 0
    with in_turn([job] * (len(planned) + 1)) as drivers:
        for number, kill in enumerate(planned, start=1):
            receive(journal, number * RECORDS_PER_KILL)
            live_through(kill, next(drivers))
            if (job.path / "runs").exists():
                removed += prune_processed(journal, job)
        last: Driver = next(drivers)
        last.let_go()
        last.finish()
    produced = {
        TopicPartition(job.topic, lane): len(planned) * RECORDS_PER_KILL for lane in range(LANES)
    }
    evidence = collect(job, produced)
    require_sound(evidence)
    assert any(run.attempt > 1 for run in evidence.runs), "no batch was ever interrupted"
    assert removed + prune_processed(journal, job) > 0


@pytest.mark.soak
def test_a_hundred_kills_over_a_journal_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    survive(list(kills(100, chance())), tmp_path / "job")
