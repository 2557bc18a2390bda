"""A batch over Spark Connect beside one of a session with a JVM."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from tests.services.connect import connect_server

from bench.figures import AtMost, Figure
from bench.machine import cores
from bench.pairs import in_turn
from bench.processes import gated_query
from bench.scale import Scale
from bench.small_batch import PLENTY, VALUE_BYTES
from bench.stage import Stage
from headrace.gate.execution.spark_session import RECOMMENDED_CONF

PARTITIONS: Final = 4
CONNECT: Final = "over Spark Connect"
CLASSIC: Final = "with a JVM"
PROMISED: Final = AtMost(1.15)


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Small batches, and large ones; each run has a client and a Spark of its own."""
    for rows in (scale.small_batch_rows, scale.executor_rows):
        topic = stage.topics.random(PARTITIONS, rows * (scale.executor_batches + 1), VALUE_BYTES)
        sides = {
            CLASSIC: partial(_batch_ms, stage, scale, topic, rows, over_connect=False),
            CONNECT: partial(_batch_ms, stage, scale, topic, rows, over_connect=True),
        }
        times_ms = in_turn(sides, scale.pairs, warm_ups=0)
        yield Figure.side_by_side(
            f"a gated batch of {rows} rows {CONNECT}",
            "ms",
            headrace=times_ms[CONNECT],
            native=times_ms[CLASSIC],
            target=PROMISED,
        )


def _batch_ms(stage: Stage, scale: Scale, topic: str, rows: int, *, over_connect: bool) -> float:
    options = {
        "kafka.bootstrap.servers": stage.topics.servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(rows),
        "backpressure.initialRate": str(PLENTY),
        "backpressure.pid.minRate": str(PLENTY),
    }
    settings = {
        "spark.master": f"local[{cores()}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **RECOMMENDED_CONF,
    }
    folder = stage.fresh_folder("connect")
    with ExitStack() as stack:
        remote = stack.enter_context(connect_server(folder, settings)) if over_connect else None
        answer = gated_query(
            remote=remote,
            settings=settings,
            options=options,
            folder=str(folder),
            ledger=stage.fresh_ledger(),
            batches=scale.executor_batches,
            skipped=scale.skipped_batches,
        )
    assert answer["rows"] == rows, f"a batch had {answer['rows']} of {rows} rows"
    took_ms: float = answer["ms"]
    return took_ms
