"""The gate's part of the suite over a real Spark Connect server, by a client without Java.

The server is that of pyspark's own package; the ledger is in PostgreSQL.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.compat.connect import Surroundings
from tests.ledger.servers import postgresql_server
from tests.services.connect import connect_server

from headrace.local import KafkaBroker

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_500)]


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
