"""A home for Spark in which its workers may write; their own would be pyspark's package.

It is without pyspark's zip file, which Spark puts before the package that is installed: each of the
many processes that a test run starts would compile again what it imports from there.
"""

from contextlib import suppress
from pathlib import Path

import pyspark


def spark_home(folder: Path) -> Path:
    """Make one in this folder, unless it is there, to be named in ``SPARK_HOME``."""
    home = folder / "spark"
    home.mkdir(exist_ok=True)
    for part in ("bin", "jars"):
        with suppress(FileExistsError):
            (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return home
