"""``headrace demo``, for real and in a process of its own: what it counts, and what it leaves."""

import json
import os
import re
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.operate.cli.commands import COMMAND, run
from tests.services.waiting import wait_until
from typer.testing import CliRunner

from headrace.operate.cli.app import app
from headrace.operate.local import Java

pytestmark = pytest.mark.nightly

MARK = "HEADRACE_TEST_MARK"


@pytest.fixture
def surroundings(tmp_path: Path, java: Java) -> Mapping[str, str]:
    """Variables by which every process of a demo is known, and a folder for all it writes."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return {MARK: uuid.uuid4().hex, "TMPDIR": str(folder), "JAVA_HOME": str(java.home)}


def alive(surroundings: Mapping[str, str]) -> list[str]:
    """The command lines of all processes that have the mark."""
    listed = subprocess.run(
        ["ps", "axeww", "-o", "command"], capture_output=True, text=True, check=True
    )
    mark = f"{MARK}={surroundings[MARK]}"
    return [line for line in listed.stdout.splitlines() if mark in line]


def assert_nothing_is_left(surroundings: Mapping[str, str]) -> None:
    wait_until(lambda: not alive(surroundings), timeout_s=60)
    assert list(Path(surroundings["TMPDIR"]).iterdir()) == []


def test_it_plays_all_acts_and_loses_nothing(
    tmp_path: Path, surroundings: Mapping[str, str]
) -> None:
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    done = run(
        *("demo", "--seconds", "25", "--ledger", ledger),
        folder=tmp_path,
        variables=surroundings,
        timeout_s=300,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    first, *lines = done.stdout.splitlines()
    assert first == f"To see it in the dashboard: headrace dashboard --ledger {ledger}"
    acts = [line[:3] for line in lines if re.match(r"\d/5 ", line)]
    assert acts == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    assert re.search(
        r"^([\d,]{4,}) orders sent, \1 arrived: none missing, none twice\.$",
        done.stdout,
        re.MULTILINE,
    ), done.stdout
    assert "1 bad record sent, 1 put aside." in lines
    printed = r"^ +\d+\.\d s  batch of [\d,]+, .* wait  +batch of "
    assert re.search(printed, done.stdout, re.MULTILINE), done.stdout
    shown = run("status", "--json", "--ledger", ledger, folder=tmp_path)
    (gate,) = [json.loads(line) for line in shown.stdout.splitlines()]
    assert (gate["gate"], gate["dead_letters"]) == ("headrace-demo", 1)
    assert run("verify", "--ledger", ledger, folder=tmp_path).returncode == 3, "a dead letter"
    assert_nothing_is_left(surroundings)


@pytest.mark.soak
def test_it_plays_with_a_kafka_broker(tmp_path: Path, surroundings: Mapping[str, str]) -> None:
    done = run(
        *("demo", "--broker", "--seconds", "25"),
        folder=tmp_path,
        variables=surroundings,
        timeout_s=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    sent, letters = done.stdout.splitlines()[-2:]
    assert re.fullmatch(r"([\d,]{4,}) orders sent, \1 arrived: none missing, none twice\.", sent)
    assert letters == "1 bad record sent, 1 put aside."
    assert_nothing_is_left(surroundings)


@pytest.mark.parametrize("moment", ["To see it", "Starting Spark", "1/5"])
def test_ctrl_c_leaves_nothing(
    tmp_path: Path, surroundings: Mapping[str, str], moment: str
) -> None:
    output = tmp_path / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*COMMAND, "demo"],
            cwd=tmp_path,
            env={**os.environ, **surroundings},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: moment in output.read_text(), timeout_s=120)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in output.read_text()
    assert_nothing_is_left(surroundings)


def test_a_length_that_cannot_be_is_refused() -> None:
    assert CliRunner().invoke(app, ["demo", "--seconds", "1"]).exit_code == 2
