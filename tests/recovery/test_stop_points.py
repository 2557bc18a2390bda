"""A process that crashes between any two durable steps leaves neither a gap nor an overlap."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.recovery.drivers import Driver
from tests.recovery.evidence import collect, require_sound
from tests.recovery.job import Job
from tests.recovery.stops import POINTS
from tests.recovery.stories import chance, fill, in_turn
from tests.services.kafka import Topic, TopicFactory
from tests.services.postgresql import NewUrl

Stop = tuple[str, int]

PARTITIONS = 2
RECORDS_PER_STOP = 60  # in each partition: two batches or more

UNCOMMITTED = {"before plan": 0, "after plan": 0, "before begin": 1, "after begin": 1}
"""Number of batches in Spark's log of offsets and not in that of its commits, at a point."""

DEFERRING = tuple(point for point in POINTS if not point.endswith("keep_progress"))
ISOLATING = tuple(point for point in POINTS if not point.endswith("release"))
"""Points that a query with that policy comes to for certain."""

RAISES_ONCE_IN = {"retry": 1, "fail": 1, "claim": 1, "release": 1, "backfilled": 2}
"""Calls of a deferring query's handler of which one raises, so that it comes to a step; three for
the other steps."""


def isolating(job: Job, stops: int, dice: random.Random) -> Job:
    """Among the records before each stop one can never be processed."""
    poison = [
        f"{dice.randrange(PARTITIONS)}/{dice.randrange(first, first + RECORDS_PER_STOP)}"
        for first in range(0, stops * RECORDS_PER_STOP, RECORDS_PER_STOP)
    ]
    return replace(job, on_failure="isolate", max_runs=5, poison=tuple(poison))


def jobs(job: Job, stops: Sequence[Stop], dice: random.Random) -> Iterator[Job]:
    """One for each stop, and one that settles everything."""
    for number, stop in enumerate([*stops, None], start=1):
        step = "" if stop is None else stop[0].split()[1]
        yield replace(
            job,
            stop=stop,
            seed=dice.randrange(2**32),
            records=min(number, len(stops)) * RECORDS_PER_STOP * PARTITIONS,
            retries=int(step == "retry"),
            raises_once_in=0 if job.poison else RAISES_ONCE_IN.get(step, 3),
        )


def uncommitted(job: Job) -> int:
    offsets, commits = (
        {
            int(file.name)
            for file in (job.path / "checkpoint" / log).glob("*")
            if file.name.isdigit()
        }
        for log in ("offsets", "commits")
    )
    return len(offsets - commits)


def crash(driver: Driver, job: Job, stop: Stop) -> None:
    print(*stop)  # noqa: T201  (the last one is shown if the test fails)
    driver.let_go()
    driver.crash()
    point, _ = stop
    if point in UNCOMMITTED:
        assert uncommitted(job) == UNCOMMITTED[point]


def survive(job: Job, stops: Sequence[Stop], topic: Topic, dice: random.Random) -> None:
    """Crash at each of these points, let the last driver settle everything, and judge."""
    with in_turn(list(jobs(job, stops, dice))) as drivers:
        for number, stop in enumerate(stops):
            produced = fill(topic, (number + 1) * RECORDS_PER_STOP, number * RECORDS_PER_STOP)
            crash(next(drivers), job, stop)
        last = next(drivers)
        last.let_go()
        last.finish()
    require_sound(collect(job, produced))


def hurried(topic: Topic, folder: Path, ledger_url: str = "") -> Job:
    return Job(
        servers=topic.bootstrap_servers,
        topic=topic.name,
        folder=str(folder),
        ledger_url=ledger_url,
        hurried=True,
    )


def shuffled(points: Sequence[str], count: int, dice: random.Random) -> list[Stop]:
    """So many stops, at each point as often as at any other, in any order."""
    chosen = list(itertools.islice(itertools.cycle(points), count))
    dice.shuffle(chosen)
    return [(point, dice.randint(1, 2) if "plan" in point else 1) for point in chosen]


@pytest.mark.soak
def test_a_crash_while_the_stream_isolates(
    topic: TopicFactory, tmp_path: Path, new_postgresql_url: NewUrl
) -> None:
    dice, orders = chance(), topic(PARTITIONS)
    stops = [("after split", 2)]
    job = isolating(hurried(orders, tmp_path / "job", new_postgresql_url()), len(stops), dice)
    survive(job, stops, orders, dice)


SOAK_KILLS = 50
"""With each policy, and each database."""


@pytest.mark.soak
def test_crashes_at_every_point_of_a_query_that_defers(
    topic: TopicFactory, tmp_path: Path, ledger_url: str
) -> None:
    dice, orders = chance(), topic(PARTITIONS)
    job = replace(hurried(orders, tmp_path / "job", ledger_url), on_failure="defer")
    survive(job, shuffled(DEFERRING, SOAK_KILLS, dice), orders, dice)


@pytest.mark.soak
def test_crashes_at_every_point_of_a_query_that_isolates(
    topic: TopicFactory, tmp_path: Path, ledger_url: str
) -> None:
    dice, orders = chance(), topic(PARTITIONS)
    job = isolating(hurried(orders, tmp_path / "job", ledger_url), SOAK_KILLS, dice)
    survive(job, shuffled(ISOLATING, SOAK_KILLS, dice), orders, dice)
