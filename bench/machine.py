"""The machine on which the figures were measured."""

import os
import platform
from importlib.metadata import version

import confluent_kafka

import headrace
from headrace.operate.local import find_java


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_machine() -> dict[str, str]:
    """The machine, how busy it is, and the versions of what takes part."""
    return {
        "cores": str(cores()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "java": find_java().version,
        "pyspark": version("pyspark"),
        "pyarrow": version("pyarrow"),
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka": confluent_kafka.libversion()[0],
        "headrace": headrace.__version__,
    }
