"""Real services on this machine, for the demo, the tests and the benchmarks.

Everything comes through pip and through the Ivy that pyspark carries; nothing here is used by a
streaming query in production.
"""

from headrace.operate.local.java import Java, ensure_java, find_java, kafka_server_jars
from headrace.operate.local.servers import KafkaBroker, start_kafka

__all__ = ["Java", "KafkaBroker", "ensure_java", "find_java", "kafka_server_jars", "start_kafka"]
