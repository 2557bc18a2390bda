"""The Python that Spark starts for planners and tasks: seen before a query needs it.

Without ``PYSPARK_PYTHON`` that is the ``python3`` of the path. Where a program is started as
``venv/bin/python job.py`` that is another one, without its packages, and each task fails with forty
lines that do not say so.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark import SparkContext

from headrace.errors import SetupError

VARIABLE: Final = "PYSPARK_PYTHON"

_IMPORT_S: Final = 60
"""How long the other Python may take to import Headrace."""


def choose_python(context: SparkContext, environ: Mapping[str, str] = os.environ) -> None:
    """See to it that Spark's processes have Headrace.

    For a local master, and where nobody has chosen, that is the Python of this program from now
    on, for functions of your own too. Elsewhere the machines may differ, and this one is examined:
    the planner runs here. Where the session sends Python files along, nothing is examined, for
    Headrace may be one of them.

    Raises:
        SetupError: it cannot be started, or cannot import headrace; the message says what to set.
    """
    chosen = context.pythonExec
    found = shutil.which(chosen)
    if found is not None and _is_this_python(Path(found)):
        return
    if VARIABLE not in environ and str(context.master).startswith("local"):
        context.pythonExec = sys.executable
    elif found is None or not (context._python_includes or _has_headrace(found)):
        lacks = "is not on this machine" if found is None else "cannot import headrace"
        raise SetupError(
            f"Spark would start its Python processes with {chosen!r}, which {lacks}; set"
            f" {VARIABLE} to a Python that has it on every machine, here {sys.executable}, before"
            " the session is made."
        )


def _is_this_python(found: Path) -> bool:
    """Whether it is of this program's environment; both of an environment are often links."""
    this = Path(sys.executable)
    return found.parent == this.parent and found.samefile(this)


def _has_headrace(python: str) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", "import headrace"], capture_output=True, timeout=_IMPORT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
