"""Parts of all stories of crashes: records, chance, and drivers one after the other."""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from tests.recovery.drivers import Driver
from tests.recovery.job import Job
from tests.services.kafka import Topic

from headrace.core.ranges import TopicPartition

Produced = Mapping[TopicPartition, int]


def chance() -> random.Random:
    """Randomness whose seed is shown if the test fails; `HEADRACE_SEED` sets it."""
    seed = int(os.environ.get("HEADRACE_SEED", random.randrange(2**32)))
    print(f"HEADRACE_SEED={seed}")  # noqa: T201
    return random.Random(seed)


def fill(topic: Topic, records: int, since: int = 0) -> Produced:
    """Give each partition records up to so many, each with its place as its value."""
    for partition in range(topic.partitions):
        values = (f"{partition}/{offset}".encode() for offset in range(since, records))
        topic.produce(*values, partition=partition)
    return {TopicPartition(topic.name, number): records for number in range(topic.partitions)}


@contextmanager
def in_turn(
    jobs: Sequence[Job], program: str = "tests.recovery.driver"
) -> Iterator[Iterator[Driver]]:
    """A driver for each job, one at a time; Spark comes up in the next one already."""
    with ExitStack() as ended:

        def drivers() -> Iterator[Driver]:
            coming = ended.enter_context(Driver(jobs[0], program))
            for job in jobs[1:]:
                driver, coming = coming, ended.enter_context(Driver(job, program))
                yield driver
            yield coming

        yield drivers()
