"""A handler that raises for one call in five, and a process that is killed, backfills and all."""

import random
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.recovery.drivers import Driver
from tests.recovery.evidence import Evidence, collect, problems, require_sound
from tests.recovery.job import GATE, Job
from tests.recovery.stories import Produced, chance, fill, in_turn
from tests.services.kafka import Topic, TopicFactory

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Verdict

PARTITIONS = 3
RECORDS_PER_BATCH = 20  # in each partition, at most


def moments(kills: int, dice: random.Random) -> Iterator[tuple[str, int]]:
    """Half of the kills in a backfill, each of which leaves one for the next driver to begin."""
    for kill in range(kills):
        if kill % 2:
            yield dice.choice(("handling", "raising", "writing", "written")), dice.randint(1, 3)
        else:
            yield "backfilling", 1


def kill_in(driver: Driver, moment: str, times: int, after_s: float) -> None:
    driver.let_go()
    driver.wait_for(moment, times)
    time.sleep(after_s)
    driver.kill()


def live_through(job: Job, kills: int, dice: random.Random) -> None:
    """Kill drivers so often, and let the last one settle everything."""
    jobs = [replace(job, seed=dice.randrange(2**32)) for _ in range(kills + 1)]
    with in_turn(jobs) as drivers:
        for moment, times in moments(kills, dice):
            kill_in(next(drivers), moment, times, dice.uniform(0, 0.1))
        last = next(drivers)
        last.let_go()
        last.finish()


def story(topic: Topic, folder: Path, batches: int) -> tuple[Job, Produced]:
    """Records for so many batches, and a query that one call in five raises in."""
    produced = fill(topic, batches * RECORDS_PER_BATCH)
    job = Job(
        servers=topic.bootstrap_servers,
        topic=topic.name,
        folder=str(folder),
        raises_once_in=5,
        records=sum(produced.values()),
    )
    return job, produced


def with_poison(job: Job, produced: Produced, dice: random.Random) -> Job:
    """The same, in which nothing raises but one batch in ten, always, for one of its records.

    Isolation stops half-way, so that there is something to backfill.
    """
    places = [f"{tp.partition}/{offset}" for tp, end in produced.items() for offset in range(end)]
    poison = dice.sample(places, len(places) // RECORDS_PER_BATCH // PARTITIONS // 10)
    return replace(job, on_failure="isolate", max_runs=5, raises_once_in=0, poison=tuple(poison))


def judge(job: Job, produced: Produced) -> Evidence:
    evidence = collect(job, produced)
    require_sound(evidence)
    with Ledger.open(job.ledger, create=False) as ledger:
        assert ledger.proofs.verify(GATE).verdict is Verdict.PROVEN
    assert any(run.raised for run in evidence.runs)
    assert any(run.kind == "backfill" and not run.raised for run in evidence.runs)
    return evidence


def see_what_is_planted(job: Job, produced: Produced, dice: random.Random) -> None:
    """Nothing of it can be lost, or be there twice, without being noticed."""
    files = sorted((job.path / "sink").glob("*.json"))
    moved = dice.choice(files)
    elsewhere = moved.rename(job.path / moved.name)
    assert any(told.endswith("is missing") for told in problems(collect(job, produced)))
    shutil.copy(elsewhere, moved)
    require_sound(collect(job, produced))
    shutil.copy(elsewhere, moved.with_name("again.json"))
    assert any(told.endswith("arrived 2 times") for told in problems(collect(job, produced)))
    moved.with_name("again.json").unlink()
    with Ledger.open(job.ledger, create=False) as ledger:
        batches = ledger.batches.newest(GATE, limit=1_000_000)
    inner = dice.choice(sorted(batch.batch_key for batch in batches[1:-1]))
    with closing(sqlite3.connect(job.path / "headrace.db")) as database:
        (dropped,) = database.execute(
            "DELETE FROM batch_range WHERE rowid = (SELECT min(rowid) FROM batch_range"
            " WHERE batch_key = ?) RETURNING partition",
            [inner],
        ).fetchall()
        database.commit()
    with Ledger.open(job.ledger, create=False) as ledger:
        found = ledger.proofs.verify(GATE)
    assert found.verdict is Verdict.BROKEN
    assert dropped[0] in {finding.offsets.partition for finding in found.findings}
    assert problems(collect(job, produced)) != []


@pytest.mark.soak
def test_ten_batches_and_a_kill_with_what_failed_deferred(
    topic: TopicFactory, tmp_path: Path
) -> None:
    dice = chance()
    job, produced = story(topic(PARTITIONS), tmp_path / "job", 10)
    job = replace(job, on_failure="defer", hurried=True)
    live_through(job, 1, dice)
    judge(job, produced)
    see_what_is_planted(job, produced, dice)


@pytest.mark.soak
def test_two_hundred_batches_and_ten_kills_with_what_failed_isolated(
    topic: TopicFactory, tmp_path: Path
) -> None:
    dice = chance()
    job, produced = story(topic(PARTITIONS), tmp_path / "job", 200)
    # A batch whose run was killed is split only when it has failed ten times: hours of waiting.
    # Nothing else runs in the end, so a record that fails is convicted by its last backfill alone:
    # with a hundred of each, one after the other, that is half an hour.
    job = replace(with_poison(job, produced, dice), hurried=True, max_backfills=15)
    live_through(job, 10, dice)
    assert set(judge(job, produced).letters) == set(job.poison)
