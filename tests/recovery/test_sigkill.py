"""A gated query, killed again and again, processes each record once.

The handler's sink is keyed by ``batch.key``: what a killed run wrote, the next one writes over.
"""

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.recovery.drivers import Driver
from tests.recovery.evidence import collect, require_sound
from tests.recovery.job import Job
from tests.recovery.stories import chance, fill, in_turn
from tests.services.kafka import Topic, TopicFactory

PARTITIONS = 3
RECORDS_PER_KILL = 50  # in each partition: more batches of 60 than are done before the last kill

WITHIN_S = {
    "handling": 0.2,  # the batch is read
    "writing": 0.02,  # the sink writes
    "ready": 2.5,  # the query comes up; its first batch is planned, or the last one run again
    "written": 0.3,  # the outcome is written down, Spark commits, the next batch is planned
    "start": 3.0,  # Spark comes up, or has come up
}
"""The moments after which a driver is killed, and how long after at most."""


@dataclass(frozen=True)
class Kill:
    """Kill the driver so long after it has come so often to this moment."""

    moment: str
    times: int
    after_s: float


def kills(count: int, dice: random.Random) -> Iterator[Kill]:
    """As many kills after one moment as after another, in any order."""
    moments = list(itertools.islice(itertools.cycle(WITHIN_S), count))
    dice.shuffle(moments)
    for moment in moments:
        times = dice.randint(1, 2) if moment in {"handling", "writing", "written"} else 1
        yield Kill(moment, times, dice.uniform(0, WITHIN_S[moment]))


def live_through(kill: Kill, driver: Driver) -> None:
    """Let a driver come to its moment, and kill it."""
    if kill.moment != "start":
        driver.let_go()
    if kill.moment in {"handling", "writing", "written"}:
        driver.wait_for(kill.moment, kill.times)
    time.sleep(kill.after_s)
    driver.kill()


def survive(planned: Sequence[Kill], topic: Topic, job: Job, held: int = 0) -> None:
    """Kill drivers so often, let the last one finish, and judge what is there."""
    produced = fill(topic, len(planned) * RECORDS_PER_KILL)
    with in_turn([replace(job, held=held)] * len(planned) + [job]) as drivers:
        for kill in planned:
            live_through(kill, next(drivers))
        last = next(drivers)
        last.let_go()
        last.finish()
    evidence = collect(job, produced)
    require_sound(evidence)
    assert any(run.attempt > 1 for run in evidence.runs), "no batch was ever interrupted"


def test_a_kill_loses_nothing_and_doubles_nothing(topic: TopicFactory, tmp_path: Path) -> None:
    orders = topic(PARTITIONS)
    job = Job(orders.bootstrap_servers, orders.name, str(tmp_path / "job"))
    survive([Kill("written", 2, 0.0)], orders, job, held=2)


@pytest.mark.soak
def test_a_hundred_kills_lose_nothing_and_double_nothing(
    topic: TopicFactory, tmp_path: Path, ledger_url: str
) -> None:
    orders = topic(PARTITIONS)
    job = Job(orders.bootstrap_servers, orders.name, str(tmp_path / "job"), ledger_url=ledger_url)
    survive(list(kills(100, chance())), orders, job)
