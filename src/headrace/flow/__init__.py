"""Flows: streaming queries in a chain, and the signals between their stages.

ZooKeeper's client is needed only for signals over ZooKeeper, and Spark only to run a flow.
"""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(
    __name__, {"zookeeper": "Signalling over ZooKeeper", "spark": "A flow"}
)
