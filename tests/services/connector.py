"""The jars of Spark's own Kafka connector, with which tests and benchmarks compare."""

from pathlib import Path
from typing import Final

from pyspark import __version__

from headrace.operate.local.java import Artifact, Java, Progress, fetched_jars, ignore

# The jar of 4.2 runs in 4.3, too.
_VERSIONS: Final = {"4.0": "4.0.2", "4.1": "4.1.1"}

# Named one by one: their dependencies are in pyspark's own jars.
SPARK_CONNECTOR: Final = (
    Artifact(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        _VERSIONS.get(".".join(__version__.split(".")[:2]), "4.2.0"),
    ),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.2"),
    Artifact("org.apache.commons", "commons-pool2", "2.13.1"),
)


JDBC: Final = (Artifact("org.postgresql", "postgresql", "42.7.14"),)
"""The driver with which Spark's JDBC writer reaches PostgreSQL."""


def jdbc_jars(java: Java, progress: Progress = ignore) -> Path:
    """The folder with the driver's jar; fetched the first time."""
    return fetched_jars("jdbc", JDBC, java, progress)


def connector_jars(java: Java, progress: Progress = ignore) -> tuple[Path, ...]:
    """The jars, for ``spark.jars``; fetched the first time."""
    folder = fetched_jars("spark-connector", SPARK_CONNECTOR, java, progress)
    return tuple(sorted(folder.iterdir()))
