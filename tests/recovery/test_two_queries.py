"""Two queries of one gate by mistake, on one ledger, killed again and again: none loses a record.

The records that were sent and that arrived are known from outside: each record's value is its
place, each job has a topic and a sink of its own.
"""

import json
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.recovery.drivers import Driver
from tests.recovery.job import GATE, Job
from tests.recovery.stories import chance, fill
from tests.services.kafka import TopicFactory

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import DEFECTS

RECORDS_PER_ROUND = 60
LIVE_S = 6.0
"""Maximum time of a round, from when both are let go to when the first is killed (s)."""


def clear_what_never_began(job: Job) -> None:
    """Remove a checkpoint of which no batch was ever planned.

    After Spark was killed while it wrote the first offsets, it refuses the folder, in which a
    temporary file is left, and says to delete it.
    """
    checkpoint = job.path / "checkpoint"
    if not any(file.name.isdecimal() for file in checkpoint.glob("offsets/*")):
        shutil.rmtree(checkpoint, ignore_errors=True)


def start_both(jobs: list[Job], dice: random.Random) -> None:
    """Start both at once, kill one at a random moment, and the other one a little later."""
    for job in jobs:
        clear_what_never_began(job)
    with Driver(jobs[0]) as first, Driver(jobs[1]) as second:
        both = [first, second]
        for driver in both:
            driver.let_go()
        dice.shuffle(both)
        for driver, most_s in zip(both, (LIVE_S, LIVE_S / 2), strict=True):
            time.sleep(dice.uniform(0, most_s))
            driver.kill()


def run_alone(job: Job) -> None:
    clear_what_never_began(job)
    with Driver(job) as driver:
        driver.let_go()
        driver.finish()


def require_each_once(job: Job, count: int, partitions: int) -> None:
    sink = [json.loads(file.read_text()) for file in (job.path / "sink").glob("*.json")]
    arrived = Counter(value for batch in sink for value, _executor in batch)
    sent = {f"{partition}/{n}" for partition in range(partitions) for n in range(count)}
    assert arrived.keys() == sent, f"{len(sent - arrived.keys())} records are missing"
    assert set(arrived.values()) == {1}
    runs = [json.loads(line) for line in (job.path / "runs").read_text().splitlines()]
    topics = {topic for run in runs for topic, *_offsets in run["ranges"]}
    assert topics == {job.topic}, "a handler was given another query's ranges"


def survive(rounds: int, topic: TopicFactory, folder: Path) -> None:
    dice = chance()
    ledger_url = f"sqlite:///{folder}/headrace.db"
    topics = [topic(2), topic(2)]
    jobs = [
        Job(each.bootstrap_servers, each.name, str(folder / name), ledger_url=ledger_url)
        for each, name in zip(topics, ("blue", "green"), strict=True)
    ]
    for number in range(rounds):
        for each in topics:
            fill(each, (number + 1) * RECORDS_PER_ROUND, since=number * RECORDS_PER_ROUND)
        start_both(jobs, dice)
    for job in jobs:
        run_alone(job)
        require_each_once(job, rounds * RECORDS_PER_ROUND, partitions=2)
    with Ledger.open(ledger_url) as ledger:
        found = ledger.proofs.verify(GATE).findings
    assert [each for each in found if each.kind in DEFECTS] == []


@pytest.mark.soak
def test_two_queries_of_one_gate_lose_nothing_of_each_other(
    topic: TopicFactory, tmp_path: Path
) -> None:
    survive(1, topic, tmp_path)


@pytest.mark.soak
def test_two_queries_of_one_gate_lose_nothing_in_two_hundred_kills(
    topic: TopicFactory, tmp_path: Path
) -> None:
    survive(100, topic, tmp_path)
