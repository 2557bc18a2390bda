"""A Spark Connect server: that of pyspark's own package, in a process of its own.

It has the tests' home of Spark, without pyspark's zip file: Spark waits 10 s, no longer, for the
Python that runs a handler, and on a busy machine it took longer to compile what it imports.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.services.spark_home import spark_home
from tests.services.waiting import wait_until

from headrace.operate.local.servers import free_ports


@contextmanager
def connect_server(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a server, with more settings than it needs or others; its address."""
    home, (port,) = spark_home(Path(sys.prefix)), free_ports(1)
    settings = {
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **(more or {}),
    }
    chosen = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [home / "sbin" / "start-connect-server.sh", "--wait", *chosen],
            env=os.environ | {"SPARK_HOME": str(home), "SPARK_NO_DAEMONIZE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: server.poll() is not None or _listens(port), 180)
        assert server.poll() is None, (folder / "server.log").read_text()[-3_000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
