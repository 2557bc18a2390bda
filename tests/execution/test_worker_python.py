"""Which Python Spark starts, where a program was started by its path."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from tests.docs.test_commands_run import SPARK

from headrace.errors import SetupError
from headrace.execution.worker_python import VARIABLE, choose_python

CHOSEN: Final = {VARIABLE: "chosen"}


def context(python: str, master: str = "local[2]", *files: str) -> Any:
    return SimpleNamespace(pythonExec=python, master=master, _python_includes=list(files))


def script(folder: Path, status: int) -> str:
    """A Python that imports headrace, or does not."""
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return str(path)


def test_a_local_master_starts_the_python_of_the_program(tmp_path: Path) -> None:
    local = context(script(tmp_path, status=1))
    choose_python(local, {})
    assert local.pythonExec == sys.executable


def test_the_same_environment_is_left_as_it_is() -> None:
    same = context(str(Path(sys.executable).with_name("python3")), "spark://host:7077")
    choose_python(same, {})
    assert same.pythonExec.endswith("python3")


@pytest.mark.integration
@pytest.mark.parametrize(("master", "environ"), [("spark://host:7077", {}), ("local[2]", CHOSEN)])
def test_a_python_without_headrace_is_refused_where_it_was_chosen_or_is_elsewhere_s(
    tmp_path: Path, master: str, environ: dict[str, str]
) -> None:
    other = context(script(tmp_path, status=1), master)
    sentence = rf"python3', which cannot import headrace; set {VARIABLE} .* {sys.executable}, "
    with pytest.raises(SetupError, match=sentence):
        choose_python(other, environ)
    choose_python(context(script(tmp_path, status=0), master), environ)


def test_a_python_that_is_not_there_is_named() -> None:
    with pytest.raises(SetupError, match=r"'\./env/bin/python', which is not on this machine; set"):
        choose_python(context("./env/bin/python", "yarn"), {})


@pytest.mark.integration
def test_where_headrace_may_come_with_the_session_nothing_is_examined(tmp_path: Path) -> None:
    choose_python(context(script(tmp_path, status=1), "yarn", "headrace.zip"), {})


@pytest.mark.integration
def test_a_program_that_is_started_by_its_path_has_its_packages_in_the_tasks(
    tmp_path: Path,
) -> None:
    code = """if True:
        import sys
        from pyspark.sql import SparkSession
        import headrace
        from headrace.journal import Journal, Records
        with Journal.open("raw", create=True).writer(lane=0) as lane:
            lane.append(Records.of([b"tea", b"milk"], timestamp_ms=0))
        spark = SparkSession.builder.master("local[1]").getOrCreate()
        headrace.register(spark)
        print(spark.read.format("headrace-journal").load("raw").count())
    """
    script(tmp_path, status=1)
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE} | SPARK
    environ.pop(VARIABLE, None)
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environ | {"PATH": f"{tmp_path}:{environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.strip() == "2", ended.stderr[-3_000:]
