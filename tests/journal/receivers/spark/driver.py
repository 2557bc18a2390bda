"""A Spark application in a process of its own that hosts receivers on its executors.

    python -m tests.journal.receivers.spark.driver MASTER JOURNAL

For each line of its input it says something, as a line of JSON: ``start`` starts two HTTP receivers
on lanes 0 and 1, and waits until they receive; ``status``; ``stop``. To each the answer is the
status of both, with their addresses. It ends with its input.
"""

import json
import sys
from dataclasses import asdict

from pyspark.sql import SparkSession
from tests.services.spark_classes import java_options

import headrace
from headrace.journal.receivers import Hosting, HttpReceiver, HttpSettings, IntakeSettings
from headrace.journal.receivers.spark import HostedReceivers


def session(master: str) -> SparkSession:
    """A small Spark, with all of its executors."""
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        # As the driver's.
        "spark.executor.extraJavaOptions": java_options(),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(master: str, journal: str) -> None:
    """Do what the lines say."""
    spark = session(master)
    hosting = Hosting(journal, intake=IntakeSettings(block_interval_ms=20))
    hosted = HostedReceivers([], [])
    with headrace.Receivers(spark) as receivers:
        for line in sys.stdin:
            match line.strip():
                case "start":
                    hosted = receivers.start(HttpReceiver(HttpSettings(port=0)), 2, hosting)
                    hosted.wait_until_receiving(timeout_s=180)
                case "stop":
                    hosted.stop()
            print(json.dumps([asdict(each) for each in hosted.status()]), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
