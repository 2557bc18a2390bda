"""A Spark session of the benchmarks' own: all cores, silent, and gone at the end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from bench.machine import cores
from headrace.execution import RECOMMENDED_CONF

STOP_S: Final = 20


@contextmanager
def spark_session(folder: Path, jars: tuple[Path, ...]) -> Iterator[SparkSession]:
    """Lend a session with these jars; its files and its log are in ``folder``."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = SparkConf(loadDefaults=False).setAll(list(_settings(folder, jars).items()))
    with ExitStack() as cleanup:
        gateway = _launch(conf, folder / "spark.log")
        cleanup.callback(_end, gateway.proc)
        spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
        cleanup.callback(spark.stop)
        yield spark


def _launch(conf: SparkConf, log_file: Path) -> JavaGateway:
    with log_file.open("wb") as log:
        # In a session of its own: Ctrl-C in the terminal is for us, who then end it.
        where = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        return launch_gateway(conf, where)  # type: ignore[no-untyped-call]


def _settings(folder: Path, jars: tuple[Path, ...]) -> dict[str, str]:
    return {
        "spark.master": f"local[{cores()}]",
        "spark.app.name": "headrace bench",
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": str(cores()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **RECOMMENDED_CONF,
    }


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The Java process ends when its input does."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
