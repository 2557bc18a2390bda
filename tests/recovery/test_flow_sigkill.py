"""A flow that is killed while a stage writes for the next one has each record once at its end.

When its first stage runs a batch again, it writes the records to other partitions, so no record is
where it was before: only the batch's key says that it has been written.
"""

import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from tests.recovery.flow_driver import CHANNELS, FLOW, STAGES, topic_of
from tests.recovery.job import Job
from tests.recovery.stories import chance, in_turn
from tests.recovery.test_sigkill import Kill
from tests.services.kafka import Topics

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import DEFECTS

PROGRAM = "tests.recovery.flow_driver"
RECORDS_PER_KILL = 150

WITHIN_S = {
    "parsing": 0.6,  # what the first stage has made is written, and its outcome written down
    "ready": 3.0,  # the queries come up; batches that were cut off run again
    "handling": 0.3,  # the last stage reads what it was given
    "written": 0.5,  # its outcome is written down; the next ones are planned
}
"""The moments after which the flow is killed, and how long after at most."""


def values(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def kills(count: int) -> Iterator[Kill]:
    """As many after one moment as after another."""
    dice = chance()
    for moment in itertools.islice(itertools.cycle(WITHIN_S), count):
        yield Kill(moment, dice.randint(1, 3), dice.uniform(0, WITHIN_S[moment]))


def survive(job: Job, planned: Sequence[Kill]) -> None:
    """Kill the flow so often, let it end, and judge what its sink has."""
    with in_turn([job] * (len(planned) + 1), PROGRAM) as drivers:
        for kill in planned:
            driver = next(drivers)
            driver.let_go()
            if kill.moment != "ready":
                driver.wait_for(kill.moment, kill.times)
            time.sleep(kill.after_s)
            assert not driver.told("java.io.OptionalDataException"), "a query disturbed another"
            driver.kill()
        last = next(drivers)
        last.let_go()
        last.finish()
    arrived = Counter(
        value.encode()
        for file in (job.path / "sink").glob("*.json")
        for value, _ in json.loads(file.read_text())
    )
    assert arrived == Counter(values(job.records))
    with Ledger.open(job.ledger, create=False) as ledger:
        assert any(batch.attempts > 1 for batch in ledger.batches.newest(limit=1000)), (
            "nothing was cut off"
        )
        for stage in STAGES:
            found = ledger.proofs.verify(f"{FLOW}.{stage}").findings
            assert not DEFECTS & {finding.kind for finding in found}


def on_topics(folder: Path, topics: Topics, kills: int) -> Job:
    raw = topics.create(2, prefix="raw")
    between = [topic_of(raw.name, channel) for channel in CHANNELS[1:]]
    created = topics.admin.create_topics([NewTopic(name, raw.partitions, 1) for name in between])
    for name in between:
        created[name].result(30)
    records = (kills + 1) * RECORDS_PER_KILL
    for partition in range(2):
        raw.produce(*values(records)[partition::2], partition=partition)
    return Job(servers=raw.bootstrap_servers, topic=raw.name, folder=str(folder), records=records)


@pytest.mark.soak
def test_twelve_kills_of_a_flow_lose_nothing_and_double_nothing(
    topics: Topics, tmp_path: Path
) -> None:
    survive(on_topics(tmp_path, topics, 12), list(kills(12)))


@pytest.mark.soak
def test_a_flow_that_is_started_and_killed_a_hundred_times_beside_a_busy_core_starts_each_time(
    topics: Topics, tmp_path: Path
) -> None:
    """All four queries start at once; one in eighteen starts failed in Spark's first tasks."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            survive(on_topics(tmp_path, topics, 100), list(kills(100)))
        finally:
            busy.kill()
