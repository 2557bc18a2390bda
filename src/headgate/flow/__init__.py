"""Flows: streaming queries in a chain, and what their stages tell each other.

Whoever uses no ZooKeeper needs no package for it, and whoever only looks on needs no Spark.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from headgate.flow.flow import Flow
from headgate.flow.signals import Signals, StageState
from headgate.flow.signals_ledger import ledger_signals
from headgate.flow.zookeeper_settings import ZookeeperSettings

if TYPE_CHECKING:
    from headgate.flow.channels import journal, kafka
    from headgate.flow.running import RunningFlow
    from headgate.flow.signals_zookeeper import zookeeper_signals
    from headgate.flow.zookeeper import ZookeeperSession

__all__ = [
    "Flow",
    "RunningFlow",
    "Signals",
    "StageState",
    "ZookeeperSession",
    "ZookeeperSettings",
    "journal",
    "kafka",
    "ledger_signals",
    "zookeeper_signals",
]

_FROM: Final = {
    "RunningFlow": "headgate.flow.running",
    "ZookeeperSession": "headgate.flow.zookeeper",
    "journal": "headgate.flow.channels",
    "kafka": "headgate.flow.channels",
    "zookeeper_signals": "headgate.flow.signals_zookeeper",
}
"""Where what needs Spark, or kazoo, an extra, comes from."""


def __getattr__(name: str) -> Any:
    """Import what needs Spark or kazoo when it is first used."""
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "zookeeper_signals":
        importlib.import_module("headgate.flow.zookeeper")  # which says so if kazoo is missing
    return getattr(importlib.import_module(_FROM[name]), name)
