"""Spark session on this machine during a ``with`` block, without output to the terminal."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headrace.errors import SetupError
from headrace.gate import RECOMMENDED_CONF


@contextmanager
def local_spark(folder: Path, name: str, cores: int, *jars: Path) -> Iterator[SparkSession]:
    """Run a local Spark session during the context, and yield it.

    ``folder`` gets the session's files and its log, ``spark.log``. ``name`` is the application's
    name, ``cores`` its number of cores, and ``jars`` are added to its class path. At the end of the
    context the session and its Java process end.

    Raises:
        SetupError: Spark does not start.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.master": f"local[{cores}]",
        "spark.app.name": name,
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **RECOMMENDED_CONF,
    }
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    log_file = folder / "spark.log"
    with ExitStack() as cleanup:
        with log_file.open("wb") as log:
            # A session of its own: the terminal's signals go to this process, which ends Java.
            where = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
            try:
                gateway = launch_gateway(conf, where)  # type: ignore[no-untyped-call]
            except PySparkRuntimeError as error:
                lines = log_file.read_text(errors="replace").splitlines()
                message = "\n".join(["Spark did not start; its log ends with:", *lines[-20:]])
                raise SetupError(message) from error
        # Java also ends when this process is killed: its input is a pipe from this process.
        cleanup.callback(gateway.proc.wait)
        cleanup.callback(gateway.proc.kill)
        context = SparkContext(conf=conf, gateway=gateway)
        # Spark's own handler of Ctrl-C would call Java to cancel jobs from within the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        spark = SparkSession(context)
        cleanup.callback(spark.stop)
        yield spark
