"""A gate whose source decodes, killed again and again, rejects each bad value once."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.recovery.drivers import Driver
from tests.recovery.job import GATE, Job
from tests.recovery.stories import chance, in_turn
from tests.recovery.test_sigkill import Kill, kills, live_through
from tests.services.kafka import Topic, TopicFactory

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Verdict

pytestmark = pytest.mark.nightly

RECORDS_PER_KILL = 150
ONE_BAD_IN = 17


def survive(planned: Sequence[Kill], topic: Topic, job: Job, held: int = 0) -> None:
    names = [str(number) for number in range(len(planned) * RECORDS_PER_KILL)]
    bad = names[::ONE_BAD_IN]
    good = [name for name in names if name not in set(bad)]
    # What is bad is text that is no JSON object.
    values = [(name if name in set(bad) else json.dumps({"v": name})).encode() for name in names]
    for partition in range(topic.partitions):
        topic.produce(*values[partition :: topic.partitions], partition=partition)
    with in_turn([replace(job, held=held)] * len(planned) + [job]) as drivers:
        for kill in planned:
            live_through(kill, next(drivers))
        finish(next(drivers))
    written = [
        value
        for file in (job.path / "sink").glob("*.json")
        for value, _ in json.loads(file.read_text())
    ]
    assert Counter(written) == Counter(good)
    with Ledger.open(job.ledger) as ledger:
        letters = ledger.dead_letters.oldest(GATE, limit=len(names))
        assert Counter((each.letter.value or b"").decode() for each in letters) == Counter(bad)
        assert ledger.proofs.verify(GATE).verdict is Verdict.PROVEN
    runs = [json.loads(line) for line in (job.path / "runs").read_text().splitlines()]
    assert any(run.get("attempt", 1) > 1 for run in runs), "no batch was ever interrupted"


def finish(driver: Driver) -> None:
    driver.let_go()
    driver.finish()


def decoding(topic: Topic, folder: Path) -> Job:
    return Job(topic.bootstrap_servers, topic.name, str(folder / "job"), decoded=True)


@pytest.mark.parametrize("moment", ["writing", "written"])
def test_a_kill_loses_no_rejected_value_and_doubles_none(
    topic: TopicFactory, tmp_path: Path, moment: str
) -> None:
    orders = topic(2)
    survive([Kill(moment, 2, 0.0)], orders, decoding(orders, tmp_path), held=2)


@pytest.mark.soak
def test_thirty_kills_lose_no_rejected_value_and_double_none(
    topic: TopicFactory, tmp_path: Path
) -> None:
    orders = topic(2)
    survive(list(kills(30, chance())), orders, decoding(orders, tmp_path))
