"""Delta Lake: its jars, and the newest Spark that they are built for, beside the tests' own.

Delta 4.4.0 is built for Spark 4.2. In Spark 4.3 its first write fails with a ``NoSuchMethodError``
(``LogicalRDD.<init>``), so what writes Delta runs in a process of its own.
"""

import os
import sys
from pathlib import Path
from typing import Final

from headrace.errors import SetupError
from headrace.operate.local.java import Artifact, Java, Progress, ensure_java, fetched_jars, ignore

DELTA: Final = (
    Artifact("io.delta", "delta-spark_4.2_2.13", "4.4.0"),
    Artifact("io.delta", "delta-storage", "4.4.0"),
)

DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The tests' tables are small: one task for the log of each, not fifty.
    "spark.databricks.delta.snapshotPartitions": "1",
}

SPARK: Final = Path(sys.prefix, "spark-4.2")
"""Folder in which ``make set-up`` has installed that Spark's package."""


def delta_jars(java: Java, progress: Progress = ignore) -> Path:
    """The folder of Delta's jars; fetched once for a machine."""
    return fetched_jars("delta", DELTA, java, progress)


def delta_settings(java: Java) -> dict[str, str]:
    """Return the settings of a session that writes Delta."""
    jars = sorted(delta_jars(java).iterdir())
    return {**DELTA_SETTINGS, "spark.jars": ",".join(map(str, jars))}


_IVY_SETTINGS: Final = """<ivysettings>
  <settings defaultResolver="cache"/>
  <resolvers>
    <filesystem name="cache">
      <artifact pattern="{}/[artifact]-[revision].[ext]"/>
    </filesystem>
  </resolvers>
</ivysettings>
"""


def packages_in(jars: Path, folder: Path) -> dict[str, str]:
    """Settings with which ``spark.jars.packages`` finds the jars of a folder, and no others."""
    (folder / "ivysettings.xml").write_text(_IVY_SETTINGS.format(jars))
    return {
        "spark.jars.ivySettings": f"{folder}/ivysettings.xml",
        "spark.jars.ivy": f"{folder}/ivy",
    }


def jars_at_hand(folder: Path) -> dict[str, str]:
    """Settings with which ``spark.jars.packages`` finds Delta's jars without a network.

    Args:
        folder: One of the test's own, for what Ivy writes.
    """
    jars = delta_jars(ensure_java())
    (storage,) = jars.glob("delta-storage-*.jar")
    return {
        **packages_in(jars, folder),
        # Ivy finds no dependencies in a plain folder of jars, so the other jar is named here.
        "spark.jars": str(storage),
        "spark.databricks.delta.snapshotPartitions": "1",
    }


def older_spark() -> dict[str, str]:
    """Variables of a process that is to have that Spark.

    Raises:
        SetupError: it is not installed.
    """
    if not (SPARK / "pyspark").is_dir():
        raise SetupError(f"There is no Spark in {SPARK}, which writes Delta tables; make set-up.")
    paths = [str(SPARK), *filter(None, [os.environ.get("PYTHONPATH")])]
    # The archive of classes is that of the tests' own Spark.
    java_options = os.environ.get("SPARK_SUBMIT_OPTS", "").split()
    kept = [each for each in java_options if not each.startswith("-XX:SharedArchiveFile=")]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "SPARK_HOME": str(SPARK / "pyspark"),
        "SPARK_SUBMIT_OPTS": " ".join(kept),
    }
