"""A home for Spark in which its workers may write; their own would be pyspark's package."""

from pathlib import Path

import pyspark


def spark_home(folder: Path) -> Path:
    """Make one in this folder, to be named in ``SPARK_HOME``."""
    home = folder / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return home
