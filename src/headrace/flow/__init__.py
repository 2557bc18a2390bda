"""Flows: streaming queries connected by Kafka topics, with pressure signals between the stages.

Signals over ZooKeeper need ZooKeeper's client; only running a flow needs Spark.
"""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(
    __name__, {"zookeeper": "Signalling over ZooKeeper", "spark": "A flow"}
)
