"""The code on the first pages does what the pages say."""

import re
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.services.kafka import Topic, TopicFactory

import headrace

ROOT = Path(__file__).parents[2]


def python_on(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def run(code: str, topic: Topic, folder: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Run a block on a real topic, from its earliest offset on, in a folder; answers its names."""
    # Spark resolves relative paths in the folder it was started in, not in ours.
    for path in ("ckpt/", "out/", "sqlite:///"):
        code = code.replace(f'"{path}', f'"{path}{folder}/' if ":" in path else f'"{folder}/{path}')
    code = code.replace("localhost:9092", topic.bootstrap_servers).replace(
        '("subscribe", "orders")',
        f'("subscribe", "{topic.name}").option("startingOffsets", "earliest")',
    )
    exec(compile(code, "page", "exec"), names)  # noqa: S102  (our own page)
    return names


def test_the_readme_s_ten_lines_run(
    spark: SparkSession, topic: TopicFactory, tmp_path: Path
) -> None:
    orders = topic()
    orders.produce(*[b"tea"] * 30)
    seen: list[int] = []

    def handler(df: DataFrame, batch: headrace.Batch) -> None:
        seen.append(df.count())

    names = run(python_on("README.md")[0], orders, tmp_path, {"spark": spark, "handler": handler})
    names["query"].processAllAvailable()
    names["query"].stop()
    assert sum(seen) == 30
    assert (tmp_path / "headrace.db").exists()


def test_getting_started_runs(spark: SparkSession, topic: TopicFactory, tmp_path: Path) -> None:
    orders = topic()
    orders.produce(*[b"tea"] * 30)
    names: dict[str, Any] = {"spark": spark}
    for block in python_on("docs/getting-started.md"):
        names = run(block, orders, tmp_path, names)
    names["query"].processAllAvailable()
    names["query"].stop()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 30
