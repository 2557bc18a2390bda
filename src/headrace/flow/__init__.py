"""Flows: streaming queries in a chain, and the signals between their stages.

ZooKeeper's client is needed only for signals over ZooKeeper, and Spark only to run a flow.
"""

from typing import TYPE_CHECKING, Final

from headrace.core.system import lazy_names
from headrace.flow.flow import Flow
from headrace.flow.ledger_transport import ledger_signals
from headrace.flow.signal_codec import StageState
from headrace.flow.stage import ZookeeperSettings
from headrace.flow.stage_signals import Signals

if TYPE_CHECKING:
    from headrace.flow.kafka_channel import kafka
    from headrace.flow.running import RunningFlow
    from headrace.flow.zookeeper_session import ZookeeperSession
    from headrace.flow.zookeeper_transport import zookeeper_signals

__all__ = [
    "Flow",
    "RunningFlow",
    "Signals",
    "StageState",
    "ZookeeperSession",
    "ZookeeperSettings",
    "kafka",
    "ledger_signals",
    "zookeeper_signals",
]

_FROM: Final = {
    "RunningFlow": "headrace.flow.running",
    "ZookeeperSession": "headrace.flow.zookeeper_session",
    "kafka": "headrace.flow.kafka_channel",
    "zookeeper_signals": "headrace.flow.zookeeper_transport",
}
"""Names that need Spark or kazoo (an extra), and the modules that have them."""

if not TYPE_CHECKING:  # or a type checker would accept any name
    __getattr__ = lazy_names(
        "headrace.flow", _FROM, {"zookeeper": "Signalling over ZooKeeper", "spark": "A flow"}
    )
