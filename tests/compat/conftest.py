"""Fixtures of the contract suite, which runs on each version of Spark and over Spark Connect."""

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.compat.connect import surroundings
from tests.services.kafka import Topics

from headrace.gate.ledger.ledger import Ledger

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what ``make compat`` runs on each Spark, and ``make nightly`` over Spark Connect."""
    for item in items:
        if item.path.parent == HERE and item.path.stem != "test_over_connect":
            item.add_marker(pytest.mark.compat)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session of the tests: a client's, where there is a server."""
    around = surroundings()
    if around is None:
        yield request.getfixturevalue("spark")
        return
    session = SparkSession.builder.remote(around.remote).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def topics(request: pytest.FixtureRequest) -> Topics:
    around = surroundings()
    broker = (
        request.getfixturevalue("broker").bootstrap_servers if around is None else around.broker
    )
    return Topics(broker, first=random.randrange(10**6, 10**9))  # others make topics there, too


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    """A ledger of a test's own; in PostgreSQL, where both client and server reach it."""
    around = surroundings()
    if around is None:
        return f"sqlite:///{tmp_path}/headrace.db"
    schema = f"ledger_{uuid.uuid4().hex}"
    with psycopg.connect(around.ledger, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return f"{around.ledger}&options=-csearch_path%3D{schema}"


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url) as opened:
        yield opened
