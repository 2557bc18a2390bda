"""A standalone Spark cluster: a master and workers, each started as an operator would start it."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.services.processes import descendants
from tests.services.spark_classes import java_options
from tests.services.spark_home import spark_home
from tests.services.waiting import wait_until

STARTS_WITHIN_S: Final = 120


class Worker:
    """A worker with a process of its own; its executors, and their Pythons, are below it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def processes(self) -> set[int]:
        """Its own process and all below it."""
        return {self._process.pid, *descendants(self._process.pid)}

    def kill(self) -> None:
        """Let its machine fail: all of its processes end at once."""
        _kill(self.processes())
        self._process.wait()

    def kill_daemon(self) -> None:
        """Let only the worker itself end; its executors find that out."""
        self._process.kill()
        self._process.wait()


class StandaloneCluster:
    """A master, and the workers that were added to it."""

    def __init__(self, folder: Path, cores: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._cores = cores
        self._log = folder / "master.log"
        self._added = 0
        self._environment = os.environ | {
            "SPARK_HOME": str(spark_home(folder)),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self._start("master", "org.apache.spark.deploy.master.Master")
        self.url: Final = wait_until(self._address, STARTS_WITHIN_S)

    def submit(self, program: Path) -> list[str]:
        """The command that runs a program here, with its driver on this machine."""
        return [
            str(Path(self._environment["SPARK_HOME"]) / "bin" / "spark-submit"),
            *("--master", self.url, "--deploy-mode", "client"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.executor.memory=512m"),
            *("--conf", f"spark.executor.extraJavaOptions={java_options()}"),
            str(program),
        ]

    def add_worker(self) -> Worker:
        """Start a worker, and wait until the master knows it."""
        self._added += 1
        name, known = f"worker-{self._added}", self._registered() + 1
        options = ["--cores", str(self._cores), "--memory", "1g"]
        options += ["--work-dir", str(self._folder / name), self.url]
        process = self._start(name, "org.apache.spark.deploy.worker.Worker", *options)
        wait_until(lambda: self._registered() >= known, STARTS_WITHIN_S)
        return Worker(process)

    def stop(self) -> None:
        """End all of it."""
        for process in self._started:
            if process.poll() is None:
                _kill({process.pid, *descendants(process.pid)})
            process.wait()

    def _address(self) -> str:
        found = re.search(r"Starting Spark master at (spark://\S+)", self._log.read_text())
        return found[1] if found else ""

    def _registered(self) -> int:
        return self._log.read_text().count("Registering worker")

    def _start(self, name: str, role: str, *options: str) -> "subprocess.Popen[bytes]":
        spark_class = Path(self._environment["SPARK_HOME"]) / "bin" / "spark-class"
        at = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        with (self._folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [spark_class, role, *at, *options],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process


@contextmanager
def standalone_cluster(folder: Path, cores: int) -> Iterator[StandaloneCluster]:
    """A master without workers, each of which will have so many cores."""
    cluster = StandaloneCluster(folder, cores)
    try:
        yield cluster
    finally:
        cluster.stop()


def _kill(processes: set[int]) -> None:
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
