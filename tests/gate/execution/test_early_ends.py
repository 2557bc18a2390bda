"""Handlers that do not read all: PySpark's own workers end each time, with a traceback."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.journal.journals import fill
from tests.services.kafka import TopicFactory

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

pytestmark = pytest.mark.nightly

_DEADLINE_S = 150

# Batches are planned in processes of PySpark's own daemon, which no setting replaces. One whose
# connection Spark closes while it ends writes these lines, now and then; with PySpark's daemon for
# the tasks as well they are written for nearly each action.
_OF_PLANNERS = re.compile(
    r"Traceback \(most recent call last\):\n"
    r'  File "\S+/pyspark/daemon\.py", line \d+, in manager\n(?:    .*\n)+'
    r'  File "\S+/pyspark/daemon\.py", line \d+, in worker\n    outfile\.flush\(\)\n'
    r"BrokenPipeError: .*\n"
)


def test_actions_that_stop_early_log_nothing(topic: TopicFactory, tmp_path: Path) -> None:
    """In a program and a Spark of its own: what Python's workers write is in its standard error."""
    orders = topic()
    orders.produce(*[b"x" * 1_000] * 4_000)  # more than a connection holds that nobody reads
    fill(tmp_path / "journal", {0: [2_000, 2_000], 1: [2_000]})
    arguments = str(tmp_path), orders.bootstrap_servers, orders.name, str(tmp_path / "journal")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gate.execution.early_ends_driver", *arguments],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    # At the program's end Spark kills Python processes, one perhaps in the middle of a line.
    written = ended.stderr.removesuffix("Traceback (most recent call last):\n")
    written, by_planners = _OF_PLANNERS.subn("", written)
    assert by_planners <= 2, ended.stderr
    for trace in ("BrokenPipe", "Traceback", "PySpark daemon", "PySpark worker"):
        assert trace not in written, written
    with Ledger.open(f"sqlite:///{tmp_path}/headrace.db") as ledger:
        for gate in ("kafka", "journal"):
            assert {batch.status for batch in ledger.batches.newest(gate)} == {Status.SUCCESS}


@pytest.mark.parametrize("end", ["finished", "raised", "left"])
def test_a_query_without_a_handler_ends_with_its_program(end: str, tmp_path: Path) -> None:
    """Spark could not deliver the event of its end any more, and logged that."""
    fill(tmp_path / "journal", {0: [20]})
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.gate.execution.bare_program"),
            *(str(tmp_path), str(tmp_path / "journal"), end),
        ],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert ended.returncode == (end == "raised"), ended.stderr
    assert "StreamingQueryListenerBus" not in ended.stderr
    with Ledger.open(f"sqlite:///{tmp_path}/headrace.db") as ledger:
        assert [gate.ended for gate in ledger.gates.all()] == ["stopped"]
