"""Flows: streaming queries connected by Kafka topics, with backpressure signals between them.

Signals over ZooKeeper need the package kazoo. Declaring a flow needs no Spark; running it does.
"""

from headrace.core.system import door

__all__, __dir__, __getattr__ = door(
    __name__, {"zookeeper": "Signalling over ZooKeeper", "spark": "A flow"}
)
