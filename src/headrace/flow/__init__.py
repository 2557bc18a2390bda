"""Flows: streaming queries in a chain, and what their stages tell each other.

Whoever uses no ZooKeeper needs no package for it, and whoever only looks on needs no Spark.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from headrace.flow.flow import Flow
from headrace.flow.signals import Signals, StageState
from headrace.flow.signals_ledger import ledger_signals
from headrace.flow.zookeeper_settings import ZookeeperSettings

if TYPE_CHECKING:
    from headrace.flow.channels import journal, kafka
    from headrace.flow.running import RunningFlow
    from headrace.flow.signals_zookeeper import zookeeper_signals
    from headrace.flow.zookeeper import ZookeeperSession

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
    "RunningFlow": "headrace.flow.running",
    "ZookeeperSession": "headrace.flow.zookeeper",
    "journal": "headrace.flow.channels",
    "kafka": "headrace.flow.channels",
    "zookeeper_signals": "headrace.flow.signals_zookeeper",
}
"""Where what needs Spark, or kazoo, an extra, comes from."""


def __getattr__(name: str) -> Any:
    """Import what needs Spark or kazoo when it is first used."""
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "zookeeper_signals":
        importlib.import_module("headrace.flow.zookeeper")  # which says so if kazoo is missing
    return getattr(importlib.import_module(_FROM[name]), name)
