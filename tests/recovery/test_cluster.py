"""A gated query on a cluster: a master, two workers and an executor process on each."""

import json
from pathlib import Path

import pytest
from tests.recovery.drivers import Driver
from tests.recovery.evidence import collect, require_sound
from tests.recovery.job import Job
from tests.services.kafka import TopicFactory
from tests.services.spark_home import spark_home

from headrace.core.ranges import TopicPartition

pytestmark = pytest.mark.nightly

PARTITIONS = 4
RECORDS = 60


@pytest.fixture
def _spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path)))


@pytest.mark.usefixtures("_spark_home")
def test_executors_in_other_processes_read_all_there_is(
    topic: TopicFactory, tmp_path: Path
) -> None:
    orders = topic(PARTITIONS)
    for partition in range(PARTITIONS):
        records = (f"{partition}/{offset}".encode() for offset in range(RECORDS))
        orders.produce(*records, partition=partition)
    job = Job(
        servers=orders.bootstrap_servers,
        topic=orders.name,
        folder=str(tmp_path / "job"),
        master="local-cluster[2,1,1024]",
    )
    with Driver(job) as driver:
        driver.let_go()
        driver.finish()
    produced = {TopicPartition(orders.name, number): RECORDS for number in range(PARTITIONS)}
    require_sound(collect(job, produced))
    executors = {
        executor
        for file in (job.path / "sink").glob("*.json")
        for _value, executor in json.loads(file.read_text())
    }
    assert len(executors) == 2
