"""Which Python Spark starts, where a program was started by its path."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from tests.docs.test_commands_run import SPARK

from headrace.errors import SetupError
from headrace.gate.execution.spark_session import LAUNCHER, VARIABLE, choose_python

pytestmark = pytest.mark.nightly

CHOSEN: Final = {VARIABLE: "chosen"}


def context(python: str, master: str = "local[2]", *files: str) -> Any:
    return SimpleNamespace(
        pythonExec=python,
        master=master,
        _python_includes=list(files),
        _jvm=None,
        _jsc=None,
        environment={},
    )


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


@pytest.mark.parametrize(("master", "environ"), [("spark://host:7077", {}), ("local[2]", CHOSEN)])
def test_a_python_without_headrace_is_refused_where_it_was_chosen_or_is_elsewhere_s(
    tmp_path: Path, master: str, environ: dict[str, str]
) -> None:
    other = context(script(tmp_path, status=1), master)
    sentence = rf"python3', which cannot import headrace; .* set {VARIABLE} .* {sys.executable}\)"
    with pytest.raises(SetupError, match=sentence):
        choose_python(other, environ)
    choose_python(context(script(tmp_path, status=0), master), environ)


def test_a_python_that_is_not_there_is_named() -> None:
    with pytest.raises(
        SetupError, match=r"'\./env/bin/python', which is not on this machine; before"
    ):
        choose_python(context("./env/bin/python", "yarn"), {})


def test_where_headrace_may_come_with_the_session_nothing_is_examined(tmp_path: Path) -> None:
    choose_python(context(script(tmp_path, status=1), "yarn", "headrace.zip"), {})


def test_the_launcher_leaves_out_what_is_installed_and_nothing_else() -> None:
    archives = [
        "/s/python/lib/pyspark.zip",
        "/s/python/lib/py4j-0.10-src.zip",
        "/s/jars/spark-core_2.jar",
    ]
    kept = "/my own/code", "/my/pyspark.zip", "/my/jars/other.jar"
    shown = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:], sep='|'); sys.exit(7)"
    ended = subprocess.run(
        [LAUNCHER, "-c", shown, "one word", "*"],
        env={"HEADRACE_PYTHON": sys.executable, "PYTHONPATH": ":".join([*archives, *kept])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.strip() == f"{':'.join(kept)}|['one word', '*']"
    assert ended.returncode == 7


PROGRAM: Final = """if True:
    import json, subprocess, sys
    import pyspark
    from pyspark.sql import SparkSession
    import headrace
    from headrace.journal import Journal, Records
    with Journal.open("raw", create=True).writer(lane=0) as lane:
        lane.append(Records.of([b"tea", b"milk"], timestamp_ms=0))
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    headrace.register(spark)
    def python(_):
        import pyspark, sys
        return [[pyspark.__file__, sys.executable]]
    java = str(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    source = sys.argv[1]
    print(json.dumps({
        "rows": spark.read.format(source).load("raw").count(),
        "worker": spark.sparkContext.parallelize([0], 1).mapPartitions(python).first(),
        "driver": [pyspark.__file__, sys.executable],
        "started": [
            line.split()[-1]
            for line in subprocess.getoutput("ps -A -o ppid=,args=").splitlines()
            if line.split()[0] == java
        ],
    }))
"""

INSTALLED: Final = """
from pyspark.sql.datasource import DataSource, DataSourceReader

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "of-a-package"
    def schema(self):
        return "id int"
    def reader(self, schema):
        return Reader()

class Reader(DataSourceReader):
    def read(self, partition):
        yield (1,)
"""


def run_program(folder: Path, source: str, first: Path) -> dict[str, Any]:
    """By its path, with such a folder first in ``PATH``."""
    ours = {VARIABLE, "PYSPARK_DRIVER_PYTHON"}
    environ = {name: value for name, value in (os.environ | SPARK).items() if name not in ours}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, source],
        cwd=folder,
        env=environ | {"PATH": f"{first}:{environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3_000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_a_program_that_is_started_by_its_path_has_its_packages_in_the_tasks(
    tmp_path: Path,
) -> None:
    script(tmp_path, status=1)
    found = run_program(tmp_path, "headrace-journal", first=tmp_path)
    assert found["rows"] == 2
    assert found["worker"] == found["driver"], "Spark's archive is read, and compiled each time"
    assert "pyspark.worker" in found["started"]
    assert "pyspark.sql.worker.lookup_data_sources" not in found["started"]


@pytest.mark.soak
def test_data_sources_that_are_installed_are_still_found(tmp_path: Path) -> None:
    (tmp_path / "pyspark_of_a_package.py").write_text(INSTALLED)
    found = run_program(tmp_path, "of-a-package", first=Path(sys.executable).parent)
    assert found["rows"] == 1
