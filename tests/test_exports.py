import subprocess
import sys

import pytest

import headgate


def test_everything_that_is_public_is_there_and_in_order() -> None:
    assert headgate.__all__ == sorted(headgate.__all__)
    assert all(getattr(headgate, name).__name__ == name for name in headgate.__all__)


def test_what_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'gateway'"):
        getattr(headgate, "gateway")  # noqa: B009


def test_the_import_alone_does_without_pyspark() -> None:
    code = "import sys, headgate; print('pyspark' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"


def test_a_task_of_spark_s_does_without_the_ledger() -> None:
    code = """if True:
        import sys
        import headgate.journal.source, headgate.kafka.source
        print({"sqlalchemy", "psycopg", "headgate.source.planner"} & set(sys.modules))
    """
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


def test_a_ledger_in_a_file_does_without_a_server_s_driver() -> None:
    code = "import sys, headgate.ledger; print('psycopg' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
