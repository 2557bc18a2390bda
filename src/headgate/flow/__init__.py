"""Flows: streaming queries in a chain, and what their stages tell each other.

Whoever uses no ZooKeeper needs no package for it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from headgate.flow.signals import Signals, StageState
from headgate.flow.signals_ledger import ledger_signals
from headgate.flow.zookeeper_settings import ZookeeperSettings

if TYPE_CHECKING:
    from headgate.flow.signals_zookeeper import zookeeper_signals
    from headgate.flow.zookeeper import ZookeeperSession

__all__ = [
    "Signals",
    "StageState",
    "ZookeeperSession",
    "ZookeeperSettings",
    "ledger_signals",
    "zookeeper_signals",
]


def __getattr__(name: str) -> Any:
    """Import what needs kazoo, an extra, when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    session = importlib.import_module("headgate.flow.zookeeper")  # which says so if it is missing
    if name == "ZookeeperSession":
        return session.ZookeeperSession
    return importlib.import_module("headgate.flow.signals_zookeeper").zookeeper_signals
