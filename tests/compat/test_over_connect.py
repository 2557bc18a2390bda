"""The gate's part of the suite over a real Spark Connect server, by a client without Java.

The server is that of pyspark's own package; the ledger is in PostgreSQL.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from tests.compat.connect import Surroundings
from tests.ledger.servers import postgresql_server
from tests.services.waiting import wait_until

from headrace.local import KafkaBroker

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_500)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start a server; its address."""
    home, port = Path(pyspark.__file__).parent, free_port()
    settings = {
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
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
        wait_until(lambda: server.poll() is not None or listens(port), 180)
        assert server.poll() is None, (folder / "server.log").read_text()[-3_000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_gate_keeps_its_promises_over_spark_connect(broker: KafkaBroker, tmp_path: Path) -> None:
    with connect_server(tmp_path) as remote, postgresql_server() as postgresql:
        around = Surroundings(remote, broker.bootstrap_servers, postgresql.url)
        bare = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        path = str(Path(sys.executable).parent)
        assert shutil.which("java", path=path) is None
        suite = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("tests/compat/test_gate.py", "tests/compat/test_flow.py"),
                f"--basetemp={tmp_path / 'client'}",
            ],
            cwd=ROOT,
            env=bare | around.variables() | {"PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    assert suite.returncode == 0, suite.stdout[-10_000:] + suite.stderr[-2_000:]
