"""Carriers of signals: each kind in turn."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.flow.worlds import LedgerWorld, MemoryWorld, World, ZookeeperWorld
from tests.services.zookeeper import ZookeeperServer

from headrace.operate.local import Java


@pytest.fixture(scope="session")
def zookeeper(java: Java) -> Iterator[ZookeeperServer]:
    """The server that all tests share: leave it running, use flows of your own."""
    with ZookeeperServer(java) as server:
        yield server


@pytest.fixture
def own_zookeeper(java: Java) -> Iterator[ZookeeperServer]:
    """A server that a test may stop, freeze and start as it likes."""
    with ZookeeperServer(java) as server:
        yield server


@pytest.fixture
def flow(request: pytest.FixtureRequest) -> str:
    """The name of a flow that no other test has."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[-100:]


@pytest.fixture(params=["memory", "sqlite", "postgresql", "zookeeper"])
def world(request: pytest.FixtureRequest, flow: str, tmp_path: Path) -> Iterator[World]:
    """A flow over each kind of transport in turn."""
    made: World
    if request.param == "memory":
        made = MemoryWorld(flow)
    elif request.param == "zookeeper":
        made = ZookeeperWorld(flow, request.getfixturevalue("zookeeper").hosts)
    else:
        url = f"sqlite:///{tmp_path}/ledger.db"
        if request.param == "postgresql":
            url = request.getfixturevalue("postgresql")
        made = LedgerWorld(flow, url)
    with made:
        yield made
