"""A program that `headrace.configure` sets up is silent while all is well, and ends by Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.docs.pages import ROOT
from tests.docs.test_commands_run import SPARK
from tests.gate.execution.quiet_program import HELD

from headrace.journal import Journal, Records

START_UP: Final = re.compile(
    "NativeCodeLoader|Spark's default log4j|incubator|log level|logging level|Utils: "
)
"""Lines that Spark writes before a program can change its log."""

RECORDS: Final = 20


def own_lines(log: Path) -> list[str]:
    """Return the lines of a program's log after Spark's start."""
    return [line for line in log.read_text().splitlines() if not START_UP.search(line)]


@pytest.mark.integration
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_a_program_logs_nothing_until_a_signal_stops_it_and_then_who_did(
    number: signal.Signals, tmp_path: Path
) -> None:
    journal = str(tmp_path / "journal")
    with Journal.open(journal, create=True).writer(lane=0) as lane:
        for index in range(RECORDS):
            lane.append(Records.of([str(index).encode()]))
    log = tmp_path / "log"
    with log.open("w") as stderr:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.gate.execution.quiet_program", journal, str(tmp_path)],
            cwd=ROOT,
            env=os.environ | SPARK,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    assert program.stdout is not None
    batches = [program.stdout.readline() for _ in range(HELD + 1)]
    assert (batches, own_lines(log)) == (["0\n", "1\n", "2\n", "3\n"], [])
    if number == signal.SIGINT:
        os.killpg(program.pid, number)  # as a terminal sends it
    else:
        program.terminate()
    rest, _ = program.communicate(timeout=120)
    lines = own_lines(log)
    assert (rest, program.returncode) == ("end\n", 0), "\n".join(lines)
    stopped = (
        r"[-\d]+ [:,\d]+ WARNING headrace\.execution: The query 'orders' is stopped by SIG\w+\."
    )
    assert re.fullmatch(stopped, lines[0])
