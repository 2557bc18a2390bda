"""A Delta table has each batch once, in whatever order they come, and until it is told to forget.

Delta runs in a process of its own, with a Spark for which it is built.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.services.lakes import older_spark

pytestmark = pytest.mark.nightly


def test_a_delta_table_has_each_batch_once(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gate.execution.delta_writes", str(tmp_path)],
        env=os.environ | older_spark(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[:3_000]
    found = json.loads(ended.stdout.splitlines()[-1])
    once = {"10": 1, "50": 1, "race 0": 1, "race 1": 1, "race 2": 1}
    assert found["rows"] == {**once, "named": 2}
    assert all(found["conflicts"])  # what was not skipped was refused as a conflict
    assert found["before it forgets"] == {"10": 1}
    assert 80 < found["transaction bytes"] < 120  # "about 100", the page on sinks says
