"""A Spark of the demo's own: two cores, silent, and gone at the end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headrace.cli.demo.signals import signals_held
from headrace.errors import SetupError
from headrace.execution import RECOMMENDED_CONF

STOP_S: Final = 20
LAST_WORDS: Final = 20


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """Lend a session whose files and log are in ``folder``; its Java process has ended after.

    Raises:
        SetupError: Spark did not start.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    conf = SparkConf(loadDefaults=False).setAll(list(_settings(folder).items()))
    with ExitStack() as cleanup:
        with signals_held():
            gateway = _launch(conf, folder / "spark.log")
            cleanup.callback(_end, gateway.proc)
        context = SparkContext(conf=conf, gateway=gateway)
        # Spark's own would ask the Java process to cancel its jobs from within the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        spark = SparkSession(context)
        cleanup.callback(spark.stop)
        yield spark


def _launch(conf: SparkConf, log_file: Path) -> JavaGateway:
    with log_file.open("wb") as log:
        # In a session of its own: what the terminal tells us, we tell the Java process.
        where = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        try:
            return launch_gateway(conf, where)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError as error:
            words = "\n".join(log_file.read_text(errors="replace").splitlines()[-LAST_WORDS:])
            raise SetupError(f"Spark did not start; its last words:\n{words}") from error


def _settings(folder: Path) -> dict[str, str]:
    return {
        "spark.master": "local[2]",
        "spark.app.name": "headrace demo",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **RECOMMENDED_CONF,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """The Java process ends when its input does."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
