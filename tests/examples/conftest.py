"""Settings of Spark for all examples."""

import pytest

from headrace.operate.local import Java


@pytest.fixture(autouse=True)
def _small_spark(java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark as it fits a test; an example itself leaves that to spark-submit."""
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    given = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{given} pyspark-shell")
