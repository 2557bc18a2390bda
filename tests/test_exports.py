import subprocess
import sys

import pytest

import headrace
import headrace.simulation
from headrace.cli.app import COMMANDS


def test_everything_that_is_public_is_there_and_in_order() -> None:
    assert headrace.__all__ == sorted(headrace.__all__)
    assert all(getattr(headrace, name).__name__ == name for name in headrace.__all__)


def test_what_simulations_export_is_there_once_and_in_order() -> None:
    names = headrace.simulation.__all__
    assert names == sorted(set(names))
    assert all(hasattr(headrace.simulation, name) for name in names)


def test_what_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'gateway'"):
        getattr(headrace, "gateway")  # noqa: B009


@pytest.mark.integration
def test_the_import_alone_brings_nothing_that_takes_time() -> None:
    code = """if True:
        import sys, headrace
        heavy = {"alembic", "confluent_kafka", "numpy", "pyarrow", "pyspark", "sqlalchemy"}
        print(heavy & {name.partition(".")[0] for name in sys.modules}, len(sys.modules) < 150)
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set() True"


@pytest.mark.integration
def test_the_help_of_each_command_needs_no_spark() -> None:
    code = """if True:
        import contextlib, sys
        sys.modules["pyspark"] = None
        for line in sys.stdin.read().splitlines():
            sys.argv = ["headrace", *line.split()]
            from headrace.cli import main
            try:
                main()
            except SystemExit as ended:
                assert not ended.code, (line, ended.code)
    """
    ended = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(f"{command} --help" for command in COMMANDS if command != "demo"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.integration
def test_a_task_of_spark_s_does_without_the_ledger() -> None:
    code = """if True:
        import sys
        import headrace.journal.journal_source, headrace.kafka.kafka_source
        print({"sqlalchemy", "psycopg", "headrace.source.planner"} & set(sys.modules))
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


@pytest.mark.integration
def test_a_ledger_in_a_file_does_without_a_server_s_driver() -> None:
    code = "import sys, headrace.ledger; print('psycopg' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
