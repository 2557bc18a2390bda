"""The gate's part of the suite over a real Spark Connect server, by a client without Java.

The server is that of pyspark's own package; the ledger is in PostgreSQL.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.compat.connect import Surroundings
from tests.operate.cli.outcomes import invoke
from tests.services.connect import connect_server
from tests.services.kafka import TopicFactory
from tests.services.postgresql import postgresql_server
from tests.services.waiting import wait_until

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Verdict
from headrace.gate.ledger.transitions import Status
from headrace.journal import Journal, Records
from headrace.operate.local import KafkaBroker

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_500)]

SHORT = (
    "each_batch_is_in_the_ledger_before_it_runs",
    "a_deferred_batch_is_run_by_the_backfill",
    "bad_records_are_isolated",
    "cannot_be_decoded",
    "records_go_through_a_flow_once",
)
"""Tests of the contract suite: planning, rates, both policies, tasks that report, and a flow."""

ENDS_S = 60
"""Limit on a program's end after its main code (s): a listener would keep it for ever."""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server that the tests of this file share."""
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


def client_variables() -> dict[str, str]:
    """The environment of a client: there is no Java."""
    path = str(Path(sys.executable).parent)
    assert shutil.which("java", path=path) is None
    bare = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return bare | {"PATH": path}


def fill(folder: Path) -> None:
    with Journal.open(str(folder / "journal"), create=True).writer(lane=0) as lane:
        lane.append(Records.of([b"tea", b"milk"], timestamp_ms=0))


@contextmanager
def visitor(remote: str, folder: Path, end: str) -> Iterator[subprocess.Popen[str]]:
    """A program that ends in this way, and does not stop its session."""
    folder.mkdir(exist_ok=True)
    fill(folder)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.compat.visitor", remote, str(folder), end],
        cwd=ROOT,
        env=client_variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize(
    "selected",
    [
        pytest.param(("-k", " or ".join(SHORT)), id="short"),
        pytest.param((), id="whole", marks=pytest.mark.soak),
    ],
)
def test_a_gate_keeps_its_promises_over_spark_connect(
    remote: str, broker: KafkaBroker, tmp_path: Path, selected: tuple[str, ...]
) -> None:
    with postgresql_server() as postgresql:
        around = Surroundings(remote, broker.bootstrap_servers, postgresql.url)
        suite = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("tests/compat/test_gate.py", "tests/compat/test_flow.py", *selected),
                f"--basetemp={tmp_path / 'client'}",
            ],
            cwd=ROOT,
            env=client_variables() | around.variables(),
            capture_output=True,
            text=True,
            check=False,
        )
    assert suite.returncode == 0, suite.stdout[-10_000:] + suite.stderr[-2_000:]


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("finished", 0, ""),
        ("refused", 1, "GateInUseError"),
        ("raised", 1, "WrongError: the program is wrong"),
    ],
)
def test_a_program_over_spark_connect_ends_when_its_main_code_ends(
    remote: str, tmp_path: Path, end: str, status: int, words: str
) -> None:
    with visitor(remote, tmp_path / "visitor", end) as program:
        _, errors = program.communicate(timeout=ENDS_S)
    assert program.returncode == status, errors
    assert words in errors


def test_ctrl_c_ends_a_program_over_spark_connect(remote: str, tmp_path: Path) -> None:
    """In ``awaitTermination``: of a call that is interrupted earlier gRPC may keep a lock, with or
    without a gate."""
    with visitor(remote, tmp_path / "visitor", "interrupted") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waits\n"
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=ENDS_S)
    assert "KeyboardInterrupt" in errors
    assert program.returncode == -signal.SIGINT


def test_a_query_whose_program_was_killed_learns_on_and_is_stopped_and_taken_up_again(
    remote: str, tmp_path: Path
) -> None:
    folder = tmp_path / "visitor"
    url = f"sqlite:///{folder}/headrace.db"

    def learnt(ledger: Ledger) -> int:
        return len([each for each in ledger.rates.history("killed") if each.processing_rate_per_s])

    def learns_on(ledger: Ledger, before: int) -> bool:
        fill(folder)
        return learnt(ledger) > before + 1

    with visitor(remote, folder, "killed") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waits\n"
        program.send_signal(signal.SIGKILL)
        program.wait()
        with Ledger.open(url) as ledger:
            before = learnt(ledger)
            wait_until(lambda: learns_on(ledger, before))
            assert invoke(url, "stop", "killed", "--by", "ops", "--timeout", "2min").exit_code == 0
            shown = invoke(url, "status", "killed", width=200).stdout
            assert "Stopped" in shown
            assert "by ops" in shown
    with visitor(remote, folder, "back") as program:
        _, errors = program.communicate(timeout=ENDS_S)
    assert program.returncode == 0, errors
    with Ledger.open(url) as ledger:
        assert ledger.proofs.verify("killed").verdict is Verdict.PROVEN


def test_sessions_that_are_made_of_another_read_behind_gates_of_their_own(
    remote: str, topic: TopicFactory, tmp_path: Path
) -> None:
    orders = topic(2)
    orders.produce(b"tea", b"milk")
    program = subprocess.run(
        [
            *(sys.executable, "-m", "tests.compat.sessions"),
            *(remote, orders.bootstrap_servers, orders.name, str(tmp_path)),
        ],
        cwd=ROOT,
        env=client_variables(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert program.returncode == 0, program.stderr
    assert "Failed to find the data source: headrace-kafka" in program.stdout
    with Ledger.open(f"sqlite:///{tmp_path}/headrace.db") as ledger:
        for gate in ("origin", "clone", "new", "origin-bare", "clone-bare", "new-bare"):
            assert ledger.proofs.verify(gate).verdict is Verdict.PROVEN
            assert [each.status for each in ledger.batches.newest(gate)] == [Status.SUCCESS]
