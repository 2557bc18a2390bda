"""The Python that Spark starts for planners and tasks: the right one, and soon.

Without ``PYSPARK_PYTHON`` that is the ``python3`` of the path. Where a program is started as
``venv/bin/python job.py`` that is another one, without its packages, and each task fails with forty
lines that do not say so.

Before a first batch has ended Spark starts Python six times, one after the other, and each compiles
PySpark anew, because it reads it from an archive. With a local master, the compiled modules beside
this program's own PySpark are used instead, which are the same.
"""

import os
import pkgutil
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.sql import SparkSession

from headrace.errors import SetupError
from headrace.spark_versions import Py4JError

if TYPE_CHECKING:
    from pyspark import SparkContext

VARIABLE: Final = "PYSPARK_PYTHON"

DAEMON: Final = "headrace.worker_daemon"
"""The module that Spark starts in place of PySpark's daemon; executors elsewhere need it too."""

LAUNCHER: Final = Path(__file__).with_name("compiled_python.sh")
"""What starts this program's Python for Spark without Spark's archives."""

_IMPORT_S: Final = 60
"""How long the other Python may take to import Headrace."""


def choose_python(context: "SparkContext", environ: Mapping[str, str] = os.environ) -> None:
    """See to it that Spark's processes have Headrace.

    For a local master, and where nobody has chosen, that is the Python of this program from now
    on, for functions of your own too. Elsewhere the machines may differ, and this one is examined:
    the planner runs here. Where the session sends Python files along, nothing is examined, for
    Headrace may be one of them.

    Raises:
        SetupError: it cannot be started, or cannot import headrace; the message says what to set.
    """
    chosen, is_local = context.pythonExec, str(context.master).startswith("local")
    found = shutil.which(chosen)
    is_this = found is not None and _is_this_python(Path(found))
    if is_local and (is_this or VARIABLE not in environ):
        context.pythonExec = sys.executable
        if _has_compiled_pyspark(context):
            context.environment["HEADRACE_PYTHON"] = sys.executable
            context.pythonExec = str(LAUNCHER)
        _keep_workers(context)
    elif found is None or not (is_this or context._python_includes or _has_headrace(found)):
        lacks = "is not on this machine" if found is None else "cannot import headrace"
        raise SetupError(
            f"Spark would start its Python processes with {chosen!r}, which {lacks}; set"
            f" {VARIABLE} to a Python that has it on every machine, here {sys.executable}, before"
            " the session is made."
        )


def _keep_workers(context: "SparkContext") -> None:
    """Start workers with `headrace.worker_daemon` from now on, unless another daemon is set.

    Python files of the session are not in the daemon's path, and Headrace may be one of them.
    """
    jsc: Any = context._jsc
    if jsc is not None and not context._python_includes:
        jsc.sc().conf().setIfMissing("spark.python.daemon.module", DAEMON)


def skip_lookup(spark: SparkSession) -> None:
    """Save the Python process in which Spark looks for data sources that are installed.

    Those are modules named ``pyspark_...``. Where this program has none, and Spark's Python is this
    one, none would be found there either. Where that cannot be told, Spark looks itself.
    """
    if spark.sparkContext.pythonExec not in {sys.executable, str(LAUNCHER)}:
        return
    if any(each.name.startswith("pyspark_") for each in pkgutil.iter_modules()):
        return
    jvm: Any = spark._jvm
    try:
        kinds = getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$")
        known = getattr(kinds, "MODULE$")
        if known.dataSourceBuilders().isEmpty():
            none = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
            getattr(known, "dataSourceBuilders_$eq")(jvm.scala.Some(none))
    except (Py4JError, TypeError):  # a Spark that has it elsewhere
        return


def _is_this_python(found: Path) -> bool:
    """Whether it is of this program's environment; both of an environment are often links."""
    this = Path(sys.executable)
    return found.parent == this.parent and found.samefile(this)


def _has_compiled_pyspark(context: "SparkContext") -> bool:
    """Whether this Python's PySpark is installed, and is the one that Spark has as an archive."""
    home, jvm = Path(pyspark.__file__).parent, context._jvm
    of_spark = None if jvm is None else jvm.java.lang.System.getenv("SPARK_HOME")
    return (
        str(home.parent) in site.getsitepackages()
        and of_spark is not None
        and home.samefile(of_spark)
        and os.access(LAUNCHER, os.X_OK)
    )


def _has_headrace(python: str) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", "import headrace"], capture_output=True, timeout=_IMPORT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
