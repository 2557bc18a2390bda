"""A journal read into Spark, beside the same records of a Kafka topic, both through Headrace."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

from bench.figures import AtLeast, Figure
from bench.made import VALUE_BYTES, fill
from bench.pairs import in_turn
from bench.scale import Scale
from bench.sides import HEADRACE, bounded, seconds_to_discard, stream, stream_rate
from bench.stage import Stage

PARTITIONS: Final = 4
PROMISED: Final = AtLeast(1.25)

JOURNAL: Final = "headrace-journal"


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """As a whole, and as one batch of a stream."""
    rows = scale.topic_bytes // VALUE_BYTES
    topic = stage.topics.random(PARTITIONS, rows, VALUE_BYTES)
    folder = stage.fresh_folder("journal")
    fill(folder, PARTITIONS, rows)
    yield _compared(
        "read as a whole, beside Kafka's source",
        scale,
        journal=lambda: rows / seconds_to_discard(_bounded(stage, folder)),
        kafka=lambda: rows / seconds_to_discard(bounded(stage, HEADRACE, topic)),
    )
    yield _compared(
        "read as a stream, beside Kafka's source",
        scale,
        journal=lambda: stream_rate(stage, _stream(stage, folder), rows),
        kafka=lambda: stream_rate(stage, stream(stage, HEADRACE, topic), rows),
    )

    yield _small_blocks(stage, scale)


def _small_blocks(stage: Stage, scale: Scale) -> Figure:
    """One lane of blocks of one record, beside the same records in large blocks.

    Nothing is promised: a disk appends some thousand such blocks a second, and each costs a reader
    some 12 µs.
    """
    folders = {"small": stage.fresh_folder("journal"), "large": stage.fresh_folder("journal")}
    rows = scale.journal_blocks
    fill(folders["small"], 1, rows, block_records=1)
    fill(folders["large"], 1, rows)
    sides = {side: partial(_rows_per_s, stage, folder, rows) for side, folder in folders.items()}
    rates = in_turn(sides, scale.pairs, scale.warm_ups)
    return Figure.side_by_side(
        f"{rows} blocks of one record, beside large blocks",
        "rows/s",
        headrace=rates["small"],
        native=rates["large"],
    )


def _rows_per_s(stage: Stage, folder: Path, rows: int) -> float:
    return rows / seconds_to_discard(_bounded(stage, folder))


def _compared(
    name: str, scale: Scale, *, journal: Callable[[], float], kafka: Callable[[], float]
) -> Figure:
    rates = in_turn({HEADRACE: kafka, JOURNAL: journal}, scale.pairs, scale.warm_ups)
    return Figure.side_by_side(
        name, "rows/s", headrace=rates[JOURNAL], native=rates[HEADRACE], target=PROMISED
    )


def _bounded(stage: Stage, folder: Path) -> DataFrame:
    return stage.spark.read.format(JOURNAL).load(str(folder))


def _stream(stage: Stage, folder: Path) -> DataFrame:
    return stage.spark.readStream.format(JOURNAL).load(str(folder))
