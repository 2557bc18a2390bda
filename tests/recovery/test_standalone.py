"""A standalone cluster whose workers are killed in the middle of batches; submitted as usual.

The expected records are known from outside: those produced to the topic, and those acknowledged by
the receivers. The sink is a table that is written in a transaction.
"""

import json
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from tests.journal.receivers.spark.numbered import Sender, sending
from tests.recovery import cluster_driver
from tests.recovery.drivers import Driver
from tests.recovery.evidence import collect, require_sound
from tests.recovery.job import Job
from tests.recovery.sinks import POSTGRESQL, make_postgresql
from tests.recovery.stories import chance, fill
from tests.services.kafka import Topic, TopicFactory
from tests.services.postgresql import NewUrl
from tests.services.standalone import Worker, standalone_cluster
from tests.services.waiting import wait_until

pytestmark = pytest.mark.nightly

PARTITIONS = 4
CORES = 4  # of a worker: two receivers and a batch go on when it is the only one
RECORDS_PER_KILL = 60
KILLS = 8


def address(folder: Path, lane: int) -> str:
    found: str | None = json.loads((folder / "addresses").read_text())[lane]
    return found or "http://127.0.0.1:9/"  # nobody listens there


def go_on_sending(folder: Path, senders: list[Sender]) -> None:
    """Return when each lane has acknowledged more, wherever its receiver is now."""
    for sender in senders:
        enough = len(sender.acknowledged) + 20

        def has_enough(sender: Sender = sender, enough: int = enough) -> bool:
            sender.address = address(folder, sender.lane)
            return len(sender.acknowledged) >= enough

        wait_until(has_enough, 120)


def victim(folder: Path, workers: list[Worker]) -> Worker:
    """The worker with a task that is held in the middle of its batch."""

    def found() -> list[Worker]:
        holding = {int(file.name) for file in (folder / "holding").iterdir()}
        return [worker for worker in workers if holding & worker.processes()]

    return wait_until(found, 120)[0]


def kill_in_a_batch(workers: list[Worker], folder: Path, *, whole: bool) -> None:
    """Kill a worker in whose task a batch is held."""
    killed = victim(folder, workers)
    if whole:
        killed.kill()
    else:
        killed.kill_daemon()
    (folder / "hold").unlink()
    for file in (folder / "holding").iterdir():
        file.unlink()
    workers.remove(killed)


def received(job: Job) -> Counter[bytes]:
    """Count each record of the journal in the sink."""
    with psycopg.connect(job.sink_url) as connection:
        rows = connection.execute(b"SELECT value FROM received").fetchall()
    return Counter(value.encode() for (value,) in rows)


def problems(job: Job, senders: list[Sender]) -> list[str]:
    """Return the faults of the records that came through the receivers."""
    there = received(job)
    found = [f"{value!r} is there {count} times" for value, count in there.items() if count > 1]
    for sender in senders:
        found += [f"{value!r} is lost" for value in sender.acknowledged if value not in there]
        of_lane = [value for value in there if value.startswith(b"%d/" % sender.lane)]
        if len(of_lane) > sender.sent:
            found.append(f"lane {sender.lane} has more than was sent")
    return found


@pytest.fixture
def orders(topic: TopicFactory) -> Topic:
    return topic(PARTITIONS)


@pytest.fixture
def job(orders: Topic, new_postgresql_url: NewUrl, tmp_path: Path) -> Job:
    postgresql = new_postgresql_url()
    make_postgresql(postgresql)
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(b"CREATE TABLE received (value TEXT, batch TEXT)")
    (tmp_path / "job" / "holding").mkdir(parents=True)
    return Job(
        servers=orders.bootstrap_servers,
        topic=orders.name,
        folder=str(tmp_path / "job"),
        ledger_url=postgresql,
        sink=POSTGRESQL,
        sink_url=postgresql,
    )


def survive(job: Job, orders: Topic, folder: Path, kills: list[bool]) -> None:
    """Kill workers so often, each whole or its daemon alone, and judge what is in the sink."""
    with standalone_cluster(folder / "cluster", CORES) as cluster:
        workers = [cluster.add_worker(), cluster.add_worker()]
        program = cluster.submit(Path(cluster_driver.__file__))
        with Driver(job, launcher=program) as driver:
            driver.wait_for("receiving")
            with sending(
                [address(job.path, lane) for lane in range(cluster_driver.LANES)]
            ) as senders:
                for number, whole in enumerate(kills):
                    workers += [cluster.add_worker() for _ in range(2 - len(workers))]
                    go_on_sending(job.path, senders)
                    (job.path / "hold").touch()
                    fill(orders, (number + 1) * RECORDS_PER_KILL, number * RECORDS_PER_KILL)
                    kill_in_a_batch(workers, job.path, whole=whole)
                go_on_sending(job.path, senders)
            (job.path / "stop").touch()
            driver.finish()
    produced = fill(orders, len(kills) * RECORDS_PER_KILL, len(kills) * RECORDS_PER_KILL)
    require_sound(collect(job, produced))
    assert problems(job, senders) == []
    senders[0].acknowledged.append(b"never stored")
    assert problems(job, senders) == ["b'never stored' is lost"]


@pytest.mark.soak
def test_a_worker_that_dies_in_a_batch_costs_no_record(
    job: Job, orders: Topic, tmp_path: Path
) -> None:
    survive(job, orders, tmp_path, [True])


@pytest.mark.soak
def test_eight_workers_that_die_in_batches_cost_no_record(
    job: Job, orders: Topic, tmp_path: Path
) -> None:
    dice = chance()
    survive(job, orders, tmp_path, [dice.random() < 1 / 2 for _ in range(KILLS)])
