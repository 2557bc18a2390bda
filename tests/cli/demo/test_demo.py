"""``headrace demo``, for real and in a process of its own: what it counts, and what it leaves."""

import os
import re
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cli.commands import COMMAND, run
from tests.services.waiting import wait_until
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.local import Java

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


@pytest.mark.parametrize(
    ("options", "source"),
    [
        pytest.param((), "journal", id="journal"),
        pytest.param(("--broker",), "kafka", id="kafka", marks=pytest.mark.soak),
    ],
)
def test_it_ends_with_a_count_and_leaves_nothing(
    tmp_path: Path, surroundings: Mapping[str, str], options: tuple[str, ...], source: str
) -> None:
    picture, ledger = tmp_path / "demo.svg", f"sqlite:///{tmp_path}/ledger.db"
    done = run(
        *("demo", *options, "--seconds", "12", "--svg", str(picture), "--ledger", ledger),
        folder=tmp_path,
        variables=surroundings,
        timeout_s=200,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    summary = re.search(
        r"^([\d,]+) orders produced, ([\d,]+) arrived.*: none missing, none twice\.$",
        done.stdout,
        re.MULTILINE,
    )
    assert summary is not None, done.stdout
    assert "0" not in summary.groups()
    assert "backlog · " in done.stdout
    assert "headrace-demo" in picture.read_text()
    status = run("status", "--ledger", ledger, folder=tmp_path)
    assert f"headrace-demo · {source}" in status.stdout
    assert_nothing_is_left(surroundings)


def test_ctrl_c_leaves_nothing_either(tmp_path: Path, surroundings: Mapping[str, str]) -> None:
    output = tmp_path / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*COMMAND, "demo", "--broker"],
            cwd=tmp_path,
            env={**os.environ, **surroundings},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: "Starting Spark" in output.read_text(), timeout_s=120)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in output.read_text()
    assert_nothing_is_left(surroundings)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--seconds", "1"),
        ("--svg", "none/demo.svg"),
    ],
    ids=" ".join,
)
def test_options_that_cannot_be_are_refused(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, ["demo", *arguments]).exit_code == 2
