"""Sinks that remember which batches they have, through deferring, isolation, backfills and kills.

Each driver defers or isolates what fails, by chance, and is killed; the last one lets everything
come to an end. A backfill runs after later batches, so the sink has them out of order.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.recovery.drivers import Driver
from tests.recovery.evidence import Evidence, collect, problems, require_sound
from tests.recovery.job import GATE, Job
from tests.recovery.sinks import (
    DELTA,
    DELTA_BY_NUMBER,
    ICEBERG,
    POSTGRESQL,
    make_iceberg,
    make_postgresql,
)
from tests.recovery.stories import Produced, chance, fill, in_turn
from tests.services.kafka import Topic, TopicFactory

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Verdict

PARTITIONS = 3
RECORDS_PER_KILL = 50  # in each partition
WITHIN_S = {"ready": 6.0, "handling": 1.0, "writing": 1.5, "written": 0.3}
"""The moments after which a driver is killed, and how long after at most: a commit of Delta's takes
a second."""


@dataclass(frozen=True)
class Kill:
    """Kill the driver so long after it has come so often to this moment."""

    moment: str
    times: int
    after_s: float

    def live_through(self, driver: Driver) -> None:
        driver.let_go()
        if self.moment != "ready":
            driver.wait_for(self.moment, self.times)
        time.sleep(self.after_s)
        driver.kill()


def kills(count: int, dice: random.Random) -> Iterator[Kill]:
    for _ in range(count):
        moment = dice.choice(list(WITHIN_S))
        # Half of those after a write come at once: the sink has the batch, the ledger does not.
        after_s = dice.choice((0.0, dice.uniform(0, WITHIN_S[moment])))
        yield Kill(moment, dice.randint(1, 3), after_s)


def story(topic: Topic, folder: Path, sink: str, batches: int) -> tuple[Job, Produced]:
    produced = fill(topic, batches * 20)
    job = Job(
        servers=topic.bootstrap_servers,
        topic=topic.name,
        folder=str(folder),
        records=sum(produced.values()),
        hurried=True,
        sink=sink,
        interval="500 ms",
        on_failure="defer",
        raises_once_in=4,
    )
    return job, produced


def with_poison(job: Job, produced: Produced, count: int, dice: random.Random) -> Job:
    places = [f"{tp.partition}/{offset}" for tp, end in produced.items() for offset in range(end)]
    return replace(job, poison=tuple(dice.sample(places, count)))


def survive(job: Job, planned: list[Kill], dice: random.Random) -> None:
    """Kill drivers so often, each with a policy of its own, and let the last one settle all."""
    policies = [
        replace(
            job,
            seed=dice.randrange(2**32),
            on_failure=dice.choice(("defer", "isolate")),
            max_runs=dice.choice((5, 200)),
        )
        for _ in planned
    ]
    last = replace(job, on_failure="isolate" if job.poison else "defer", raises_once_in=0)
    with in_turn([*policies, last]) as drivers:
        for kill in planned:
            kill.live_through(next(drivers))
        driver = next(drivers)
        driver.let_go()
        driver.finish()


def judge(job: Job, produced: Produced) -> Evidence:
    evidence = collect(job, produced)
    require_sound(evidence)
    with Ledger.open(job.ledger, create=False) as ledger:
        assert ledger.proofs.verify(GATE).verdict is Verdict.PROVEN
    assert set(evidence.letters) == set(job.poison)
    return evidence


def came_late(evidence: Evidence) -> bool:
    """Whether a batch was written after one of the same partition that is behind it."""
    reached: dict[int, int] = {}
    for run in evidence.runs:
        for each in run.ranges if not run.raised else ():
            if each.start < reached.get(each.partition, 0):
                return True
            reached[each.partition] = each.until
    return False


def sink_of(request: pytest.FixtureRequest, job: Job) -> Job:
    """The job with its sink made, where that is not left to its first write."""
    if job.sink == ICEBERG:
        make_iceberg(job)
    if job.sink != POSTGRESQL:
        return job
    url: str = request.getfixturevalue("new_postgresql_url")()
    make_postgresql(url)
    return replace(job, sink_url=url)


@pytest.mark.parametrize(
    "sink",
    [
        pytest.param(DELTA, marks=pytest.mark.soak),
        pytest.param(ICEBERG, marks=pytest.mark.soak),
        POSTGRESQL,
    ],
)
def test_what_was_written_and_not_reported_is_not_written_again(
    request: pytest.FixtureRequest, topic: TopicFactory, tmp_path: Path, sink: str
) -> None:
    """Killed between the sink's commit and the ledger's, and then what failed is deferred."""
    job, produced = story(topic(PARTITIONS), tmp_path / "job", sink, 8)
    job = sink_of(request, job)
    with in_turn([replace(job, held=2), job]) as drivers:
        Kill("written", 2, 0.0).live_through(next(drivers))
        last = next(drivers)
        last.let_go()
        last.finish()
    evidence = judge(job, produced)
    assert any(run.attempt > 1 for run in evidence.runs if not run.raised)
    assert came_late(evidence)


@pytest.mark.soak
def test_the_usual_recipe_for_delta_loses_what_comes_late(
    topic: TopicFactory, tmp_path: Path
) -> None:
    """So that these tests would see it."""
    job, produced = story(topic(PARTITIONS), tmp_path / "job", DELTA_BY_NUMBER, 8)
    with Driver(job) as driver:
        driver.let_go()
        driver.finish()
    evidence = collect(job, produced)
    assert came_late(evidence)
    assert any(found.endswith("is missing") for found in problems(evidence))
    with Ledger.open(job.ledger, create=False) as ledger:
        assert ledger.proofs.verify(GATE).verdict is Verdict.PROVEN  # for a sink is its own matter


@pytest.mark.soak
@pytest.mark.parametrize("sink", [DELTA, ICEBERG, POSTGRESQL])
def test_a_hundred_kills_lose_nothing_and_double_nothing_in_a_sink_that_remembers(
    request: pytest.FixtureRequest, topic: TopicFactory, tmp_path: Path, sink: str
) -> None:
    dice = chance()
    job, produced = story(topic(PARTITIONS), tmp_path / "job", sink, 250)
    job = with_poison(sink_of(request, job), produced, 5, dice)
    survive(job, list(kills(100, dice)), dice)
    evidence = judge(job, produced)
    assert came_late(evidence)
    assert any(run.kind == "backfill" for run in evidence.runs)
    assert any("." in run.key for run in evidence.runs)
