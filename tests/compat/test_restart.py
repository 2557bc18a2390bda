"""A gated query whose driver is killed, on each version of Spark."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.recovery.drivers import Driver
from tests.recovery.evidence import collect, require_sound
from tests.recovery.job import Job
from tests.recovery.stories import fill
from tests.services.kafka import TopicFactory

pytestmark = pytest.mark.integration  # it starts drivers


def test_a_driver_that_is_killed_in_a_batch_loses_nothing_and_doubles_nothing(
    topic: TopicFactory, tmp_path: Path
) -> None:
    orders = topic(2)
    produced = fill(orders, 100)
    folder = str(tmp_path / "job")
    job = Job(orders.bootstrap_servers, orders.name, folder, records=200, hurried=True)
    with Driver(replace(job, held=2)) as killed:
        killed.let_go()
        killed.wait_for("written", 2)
        killed.kill()
    with Driver(job) as last:
        last.let_go()
        last.finish()
    evidence = collect(job, produced)
    require_sound(evidence)
    assert any(run.attempt > 1 for run in evidence.runs), "no batch was interrupted"
