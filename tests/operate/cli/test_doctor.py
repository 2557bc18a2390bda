"""``headrace doctor``: each check, and how the command ends."""

import json
import socket
import sqlite3
import stat
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.operate.cli.commands import run
from typer.testing import CliRunner

from headrace import __version__
from headrace.errors import SetupError
from headrace.gate.execution.spark_session import RECOMMENDED_CONF
from headrace.gate.ledger.ledger import Ledger
from headrace.operate.cli import doctor
from headrace.operate.cli.app import app
from headrace.operate.cli.doctor import Check, Level
from headrace.operate.local import Java, KafkaBroker
from headrace.operate.local.servers import free_ports


def a_java(home: Path, version: str) -> Path:
    """A program that says it is this Java."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '    java.version = {version}'\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


@pytest.mark.integration
def test_all_is_well_here(ledger_url: str, broker: KafkaBroker, tmp_path: Path) -> None:
    done = run(
        "doctor", "--ledger", ledger_url, "--kafka", broker.bootstrap_servers, folder=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    checked = [line.split(":")[0].split(maxsplit=1)[1] for line in done.stdout.splitlines()]
    assert checked == [
        *("Python", "Java", "pyspark", "pyarrow", "confluent-kafka", "pandas"),
        *("engine", "Spark settings", "Ledger", "Kafka"),
    ]
    assert "problem" not in done.stdout


@pytest.mark.integration
def test_a_problem_ends_with_1_and_json_says_what_to_do(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    servers = f"127.0.0.1:{port}"
    result = CliRunner().invoke(app, ["doctor", "--kafka", servers, "--json"])
    assert result.exit_code == 1
    last = json.loads(result.output.splitlines()[-1])
    assert last.keys() == {"check", "level", "found", "advice"}
    assert (last["check"], last["level"]) == ("Kafka", "problem")
    assert servers in last["found"]
    assert "Connection refused" in last["found"]
    assert "check the address" in last["advice"]


def test_a_listener_that_cannot_be_reached_is_named_with_its_broker() -> None:
    near, far = socket.socketpair()
    answers: dict[str, socket.socket | OSError] = {
        "near": near,
        "unknown": socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        "closed": ConnectionRefusedError(111, "Connection refused"),
        "silent": TimeoutError("timed out"),
    }

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        answer = answers[address[0]]
        if isinstance(answer, OSError):
            raise answer
        return answer

    def check(*hosts: str) -> Check:
        listeners = {number: (host, 9092) for number, host in enumerate(hosts, 1)}
        return doctor.check_listeners("b:9093", listeners, connect)

    with near, far:
        assert check("near") == Check("Kafka", Level.OK, "b:9093 answers")
        found = check("near", "unknown", "closed", "silent")
    assert (found.level, found.found) == (
        Level.PROBLEM,
        "b:9093 answers, but broker 2 advertises unknown:9092, which does not resolve here (Name or"
        " service not known), and broker 3 advertises closed:9092, which cannot be reached from"
        " here (Connection refused), and broker 4 advertises silent:9092, which cannot be reached"
        " from here (timed out)",
    )
    assert "advertised.listeners" in found.advice


def test_the_versions_asked_for_are_those_that_the_package_declares() -> None:
    declared = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    lines = [*declared["dependencies"], *declared["optional-dependencies"]["spark"]]
    oldest = {
        need.name: bound.version
        for need in map(Requirement, lines)
        for bound in need.specifier
        if bound.operator == ">="
    }
    assert doctor.OLDEST_PACKAGES.items() <= oldest.items()
    python = str(declared["requires-python"]).removeprefix(">=")
    assert ".".join(map(str, doctor.OLDEST_PYTHON)) == python


@pytest.mark.parametrize(
    ("check", "level"),
    [
        *((doctor.check_package("pyspark", v, "4.2"), Level.PROBLEM) for v in ("4.1.9", "3.10")),
        *((doctor.check_package("pyspark", v, "4.2"), Level.OK) for v in ("4.2.0", "4.10.0")),
        (doctor.check_package("pyspark", "5.0rc1", "4.2"), Level.OK),
        (doctor.check_package("pyspark", None, "4.2"), Level.PROBLEM),
        (doctor.check_python((3, 10, 4)), Level.PROBLEM),
        (doctor.check_python((3, 11, 0)), Level.OK),
        (doctor.check_pandas("3.0.1"), Level.WARNING),
        (doctor.check_pandas("2.3.3"), Level.OK),
        (doctor.check_pandas(None), Level.OK),
        (doctor.check_delta("4.4.1", "<=4.2.0,>=4.0.1", "4.3.0"), Level.PROBLEM),
        (doctor.check_delta("4.4.1", "<=4.2.0,>=4.0.1", "4.0.0"), Level.PROBLEM),
        (doctor.check_delta("4.4.1", "<=4.2.0,>=4.0.1", "4.2.0"), Level.OK),
        (doctor.check_delta("4.4.1", "<=4.2.0,>=4.0.1", None), Level.OK),
        (doctor.check_delta("4.4.1", "", "4.3.0"), Level.OK),
        (doctor.check_engine(None), Level.OK),
        (doctor.check_engine(__version__), Level.OK),
        (doctor.check_engine("0.0.9"), Level.WARNING),
        (doctor.check_spark_defaults(None), Level.WARNING),
    ],
)
def test_a_version_is_compared_and_what_is_to_be_done_is_said(check: Check, level: Level) -> None:
    assert check.level is level
    assert bool(check.advice) is (level is not Level.OK)
    if check.check == "pyspark" and level is Level.PROBLEM:
        assert check.advice == "pip install 'pyspark>=4.2'"


@pytest.mark.integration
def test_an_installed_delta_lake_is_looked_at_by_what_it_declares_of_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "delta_spark-4.4.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: delta-spark\nVersion: 4.4.1\n"
        "Requires-Dist: importlib_metadata >=1.0.0\nRequires-Dist: pyspark <1.0,>=0.9\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (check,) = [each for each in doctor.examine(None, None) if each.check == "delta-spark"]
    assert check.level is Level.PROBLEM
    assert check.found.startswith("4.4.1, which cannot write in pyspark ")
    assert check.advice == "pip install 'pyspark<1.0,>=0.9'"


def test_no_java_is_a_problem_with_its_way_out() -> None:
    def find() -> Java:
        raise SetupError("No Java 17 or newer (a is 8; b is 11.0.2); install one, or (b); run c.")

    check = doctor.check_java(find)
    assert (check.level, check.advice) == (Level.PROBLEM, "install one, or (b); run c")
    assert check.found == "No Java 17 or newer (a is 8; b is 11.0.2)"


@pytest.mark.integration
def test_a_java_that_spark_would_not_find_by_itself_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_java(tmp_path / "old", "11.0.2")
    new = a_java(tmp_path / "new", "21.0.1")
    new.write_text(new.read_text() + f"echo '    java.home = {tmp_path}/new'\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "new" / "bin"))
    check = doctor.check_java()
    assert (check.level, check.found) == (Level.WARNING, "21.0.1 by PATH")
    assert check.advice == f"for Spark, set JAVA_HOME={tmp_path}/new"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "level", "found"),
    [
        (f"{doctor.SOCKETS} true\n", Level.OK, "is true"),
        (f"{doctor.SOCKETS}=true", Level.OK, "is true"),
        (f"{doctor.SOCKETS}  false", Level.WARNING, "is false"),
        (f"# {doctor.SOCKETS} true", Level.WARNING, "is not in"),
    ],
)
def test_the_setting_for_small_batches_is_looked_for(
    text: str, level: Level, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(f"spark.master local\n{text}")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (check,) = [c for c in doctor.examine(None, None) if c.check == "Spark settings"]
    assert check.level is level
    assert found in check.found


def test_the_setting_is_the_one_that_a_session_is_configured_with() -> None:
    assert RECOMMENDED_CONF == {doctor.SOCKETS: "true"}


def test_a_ledger_is_read_and_written_and_stays_as_it_was(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        before = ledger.batches.newest("orders")
        check = doctor.check_ledger(ledger_url)
        assert ledger.batches.newest("orders") == before
    assert check.level is Level.OK
    assert check.found.endswith("can be read and written")


def test_a_ledger_of_which_a_program_keeps_a_snapshot_has_a_log_that_grows(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    url = f"sqlite:///{file}"
    with Ledger.open(url) as ledger, closing(sqlite3.connect(file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM gate").fetchall()
        with closing(sqlite3.connect(file)) as writer, writer:
            writer.execute("CREATE TABLE filler AS SELECT randomblob(9000000) AS x")
        check = doctor.check_ledger(url)
        assert check.level is Level.WARNING
        assert "but its -wal has 9 MB and grows" in check.found
        reader.rollback()
        assert doctor.check_ledger(url).level is Level.OK
        assert ledger.gates.all() == ()


def test_a_ledger_that_is_not_there_yet_is_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    assert doctor.check_ledger(url).found.endswith("did not exist and has been made")
    assert doctor.check_ledger(url).found.endswith("can be read and written")


def test_a_ledger_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "text.db"
    file.write_text("not a database, and longer than the header that SQLite looks for first" * 20)
    check = doctor.check_ledger(f"sqlite:///{file}")
    assert check.level is Level.PROBLEM
    assert "not a SQLite database" in check.found
    assert check.advice == "name another file"


def test_no_password_is_ever_shown() -> None:
    (port,) = free_ports(1)
    check = doctor.check_ledger(f"postgresql://app:hunter2@127.0.0.1:{port}/db")
    assert check.level is Level.PROBLEM
    assert "hunter2" not in repr(check)
