import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import mypy.api
import pytest

import headrace
import headrace.flow
import headrace.journal.receivers
from headrace.operate.cli.app import EXAMPLES


def test_everything_that_is_public_is_there_and_in_order() -> None:
    assert headrace.__all__ == sorted(headrace.__all__)
    assert all(getattr(headrace, name).__name__ == name for name in headrace.__all__)


@pytest.mark.parametrize("package", [headrace, headrace.flow, headrace.journal.receivers])
def test_nothing_public_is_made_with_a_private_argument(package: ModuleType) -> None:
    kinds = [
        kind
        for name in package.__all__
        if inspect.isclass(kind := getattr(package, name)) and not issubclass(kind, Exception)
    ]
    private = [
        f"{kind.__name__}({name})"
        for kind in kinds
        for name in inspect.signature(kind).parameters
        if name.startswith("_")
    ]
    assert kinds
    assert private == []


def test_completion_shows_what_is_public() -> None:
    shown = [name for name in dir(headrace) if not name.startswith("_")]
    assert shown == headrace.__all__


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


WITHOUT_EXTRAS: Final = """if True:
    import sys
    from headrace.core.system import EXTRAS
    sys.modules |= dict.fromkeys(name for packages in EXTRAS.values() for name in packages)
"""
"""Beginning of a program that finds none of the packages that extras install."""

HELP_OF_COMMANDS: Final = """if True:
    import sys
    from headrace.operate.cli import main
    for words in sys.argv[1:]:
        sys.argv = ["headrace", *words.split(), "--help"]
        try:
            main()
        except SystemExit as ended:
            assert not ended.code, (words, ended.code)
"""
"""A program that prints the help of each command of its arguments."""


def run_without_extras(code: str, *arguments: str) -> str:
    """Run a program that finds no extra's package; return its output; assert that it succeeds."""
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.integration
def test_the_help_of_each_command_needs_no_extra() -> None:
    shown = run_without_extras(HELP_OF_COMMANDS, *EXAMPLES)
    assert shown.count("Usage: headrace") == len(EXAMPLES)


@pytest.mark.integration
@pytest.mark.parametrize("package", [headrace, headrace.flow, headrace.journal.receivers])
def test_names_and_docstrings_are_there_without_extras(package: ModuleType) -> None:
    code = """if True:
    import importlib, inspect, pydoc
    package = importlib.import_module(sys.argv[1])
    names = {}
    exec(f"from {sys.argv[1]} import *", names)
    pydoc.render_doc(package)
    for name in package.__all__:
        print(f"{name}: {inspect.getdoc(names[name])}")
    """
    expected = [f"{name}: {inspect.getdoc(getattr(package, name))}" for name in package.__all__]
    assert run_without_extras(code, package.__name__) == "\n".join(expected) + "\n"


@pytest.mark.integration
def test_a_type_checker_knows_the_public_names(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """from typing import assert_type
import headrace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

def handler(df: DataFrame, batch: headrace.Batch) -> None:
    assert_type(batch.key, str)

spark = headrace.configure(SparkSession.builder).getOrCreate()
assert_type(spark, SparkSession)
gate = headrace.Gate("orders", interval="1 second", ledger="sqlite:///headrace.db")
orders = gate.read(spark, "journal").load("journals/orders")
query = gate.write(orders, handler).option("checkpointLocation", "checkpoints/orders").start()
assert_type(query, StreamingQuery)
headrace.Gate("orders", intervall="1 second")
headrace.gateway
gate.write(orders, handler, on_failure="pray")
gate.write(orders, handler, on_outage="pray")
headrace.retry(attempts=3, then="pray")
headrace.Gate("orders", interval="auto", ledger="sqlite:///headrace.db", work_ratio="0.8")
policy = headrace.retry(3, then=headrace.isolate())
gate.write(orders, handler, on_failure=policy, on_outage="defer", backfill="every 10 minutes")
assert_type(headrace.OffsetRange("orders", 0, 1, 2).count, int)
try:
    pass
except (headrace.BatchSplitError, headrace.MachineryError, headrace.RegistryError) as error:
    assert_type(str(error), str)
except (headrace.GateInUseError, headrace.LedgerSchemaError):
    pass
"""
    )
    shown, errors, _ = mypy.api.run(["--strict", "--no-error-summary", str(program)])
    reported = re.findall(r"program\.py:(\d+): error: .*\[([\w-]+)\]$", shown, re.MULTILINE)
    wrong = [("15", "call-arg"), ("16", "attr-defined")]
    wrong += [(str(line), "arg-type") for line in range(17, 21)]
    assert (reported, errors) == (wrong, ""), shown


@pytest.mark.integration
def test_a_task_of_spark_s_does_without_the_ledger() -> None:
    code = """if True:
        import sys
        import headrace.journal.journal_source, headrace.gate.kafka.kafka_source
        print({"sqlalchemy", "psycopg", "headrace.gate.source.planner"} & set(sys.modules))
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


@pytest.mark.integration
def test_a_ledger_in_a_file_does_without_a_server_s_driver() -> None:
    code = "import sys, headrace.gate.ledger; print('psycopg' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
