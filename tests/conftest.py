"""The services that tests share: one Java, one broker and one Spark session for each worker."""

import itertools
import os
import signal
import sys
from collections.abc import Iterator
from unittest import mock

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from hypothesis import settings
from pyspark.sql import SparkSession
from tests.operate.dashboard.left_out import leave_out_pages
from tests.services import spark_classes, tiers
from tests.services.connector import connector_jars
from tests.services.examples import FEW, FULL, SOME
from tests.services.folders import use_memory
from tests.services.forks import forks_for_planners
from tests.services.kafka import TopicFactory, Topics
from tests.services.postgresql import NewUrl, PostgresqlServer, postgresql_server
from tests.services.spark_home import surroundings

from headrace.operate.local import Java, KafkaBroker, ensure_java, kafka_server_jars

use_memory()
os.environ.update(surroundings())
os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_classes.submit_options())

# A shell starts what runs in its background with Ctrl-C ignored, and so would be what we start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The time of an example says nothing on a machine that others use, too. `make test` draws the same
# examples each time, so that a change is judged by itself; `make nightly` draws others.
settings.register_profile("headrace", deadline=None, max_examples=SOME, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=SOME)
settings.register_profile("soak", deadline=None, max_examples=FULL)
settings.register_profile("unit", deadline=None, max_examples=FEW, derandomize=True)
settings.load_profile("headrace")

LONG = ("recovery", "spark", "docs", "examples", "bench")
"""Folders whose tests take longest: they come first, so that the workers end together."""


tiers.watch_processes()


def pytest_configure(config: pytest.Config) -> None:
    """Leave out what this machine has no browser for."""
    leave_out_pages(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its tier, and have those first that take longest.

    Workers get the tests file by file, and so end together.
    """
    tier = {item: tiers.tier_of(item) for item in items}
    for item in items:
        item.add_marker(tier[item])
    items.sort(key=lambda item: (item.path.parent.name not in LONG, -tiers.TIERS.index(tier[item])))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Let no unit test start a process."""
    tiers.begin(item)
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a unit test that tried to."""
    tried = tiers.end()
    yield
    if tried is not None:
        pytest.fail(f"The unit test {item.nodeid} has tried to start {tried}.", pytrace=False)


@pytest.fixture(scope="session")
def java() -> Java:
    """The Java that everything here runs on."""
    return ensure_java()


@pytest.fixture(scope="session")
def broker(java: Java) -> Iterator[KafkaBroker]:
    """The Kafka broker that all tests share: leave it running, use topics of your own."""
    with KafkaBroker(java, kafka_server_jars(java)) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def close_ledgers() -> Iterator[None]:
    """Close the ledgers that gates share: a process keeps them, and each test has its own."""
    yield
    gate_state = sys.modules.get("headrace.gate.execution.gate_state")
    if gate_state is None:
        return
    for state in gate_state.all_states().values():
        state.starts_anew()  # nothing is said of it when this process ends
    for ledger in list(gate_state._open.values()):
        ledger.close()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of the PostgreSQL database that all tests share: use schemas of your own."""
    with postgresql_server() as running:
        yield running.url


@pytest.fixture(scope="session")
def new_postgresql_url(postgresql: str) -> NewUrl:
    """Makes the URL of an empty schema in the shared database."""
    numbers = itertools.count()

    def new_url() -> str:
        schema = f"schema_{next(numbers)}"
        with psycopg.connect(postgresql, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        return f"{postgresql}&options=-csearch_path%3D{schema}"

    return new_url


@pytest.fixture
def own_postgresql() -> Iterator[PostgresqlServer]:
    """A PostgreSQL server that a test may stop and start as it likes."""
    with postgresql_server() as running:
        yield running


@pytest.fixture(scope="session")
def topics(broker: KafkaBroker) -> Topics:
    return Topics(broker.bootstrap_servers)


@pytest.fixture(scope="session")
def admin(topics: Topics) -> AdminClient:
    """An administrator's client of the shared broker."""
    return topics.admin


@pytest.fixture(scope="session")
def topic(topics: Topics) -> TopicFactory:
    """``topic(partitions, config)`` makes a fresh topic on the shared broker."""
    return topics.create


@pytest.fixture(scope="session")
def spark(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session that all tests share: stop the queries you start, and nothing else."""
    forks = forks_for_planners(tmp_path_factory.mktemp("forks"))
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("headrace tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.python.unix.domain.socket.enabled", "true")
        # Spark's own Kafka connector, to be held against it.
        .config("spark.jars", ",".join(map(str, connector_jars(java))))
    )
    with forks as environ:
        with mock.patch.dict(os.environ, environ):
            session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
