"""A home for Spark in which its workers may write; their own would be pyspark's package.

It is without pyspark's zip file, which Spark puts before the package that is installed: each of the
many processes that a test run starts would compile again what it imports from there.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

_ROOT: Final = str(Path(__file__).parents[2])


def surroundings() -> dict[str, str]:
    """Variables of every process of the tests: what it imports, and which Spark it starts."""
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")])),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home(Path(sys.prefix))),
    }


def spark_home(folder: Path) -> Path:
    """Make one in this folder, unless it is there, to be named in ``SPARK_HOME``."""
    home = folder / "spark"
    home.mkdir(exist_ok=True)
    for part in ("bin", "jars", "sbin"):
        with suppress(FileExistsError):
            (home / part).symlink_to(Path(pyspark.__file__).resolve().parent / part)
    return home
