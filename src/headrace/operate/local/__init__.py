"""Kafka, PostgreSQL and Spark on this machine, for the demo, the tests and the benchmarks.

Downloads come through pip and through pyspark's Ivy. Streaming queries in production use no part of
this package.
"""

from headrace.operate.local.java import Java, ensure_java, find_java, kafka_server_jars
from headrace.operate.local.servers import KafkaBroker, start_kafka

__all__ = ["Java", "KafkaBroker", "ensure_java", "find_java", "kafka_server_jars", "start_kafka"]
