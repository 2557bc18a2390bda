"""Time that a program waits for its first batch, in a process and a Spark of its own."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from tests.services.connector import connector_jars

from bench.figures import AtMost, Figure
from bench.machine import cores
from bench.pairs import in_turn
from bench.processes import first_batch
from bench.scale import Scale
from bench.sides import HEADRACE, NATIVE
from bench.small_batch import PLENTY, VALUE_BYTES
from bench.stage import Stage
from headrace.gate.execution.spark_session import RECOMMENDED_CONF
from headrace.operate.local import ensure_java

GATED: Final = "gated"
PARTITIONS: Final = 4
PROMISED: Final = AtMost(1.2)


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """The source alone and behind a gate, each beside the native one, in the same rounds."""
    rows = scale.small_batch_rows
    topic = stage.topics.random(PARTITIONS, rows, VALUE_BYTES)
    found: dict[str, list[dict[str, float]]] = {NATIVE: [], HEADRACE: [], GATED: []}
    times_s = in_turn(
        {side: partial(_seconds, stage, side, topic, rows, found[side]) for side in found},
        scale.pairs,
        warm_ups=min(scale.warm_ups, 1),
    )
    for side, words in ((HEADRACE, ""), (GATED, ", gated")):
        yield Figure.side_by_side(
            f"load and first batch of {rows} rows{words}",
            "s",
            headrace=times_s[side],
            native=times_s[NATIVE],
            target=PROMISED,
            details={"headrace": found[side], "native": found[NATIVE]},
        )


def _seconds(
    stage: Stage, side: str, topic: str, rows: int, found: list[dict[str, float]]
) -> float:
    options = {
        "kafka.bootstrap.servers": stage.topics.servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    if side == GATED:
        rates = ("backpressure.initialRate", "backpressure.pid.minRate")
        options |= dict.fromkeys(rates, str(PLENTY))
    settings = {
        "spark.master": f"local[{cores()}]",
        "spark.jars": ",".join(map(str, connector_jars(ensure_java()))),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **RECOMMENDED_CONF,
    }
    folder = str(stage.fresh_folder("first-batch"))
    answer = first_batch(side=side, options=options, folder=folder, settings=settings)
    assert answer["rows"] == rows, f"{side} read {answer['rows']} of {rows} rows"
    found.append(answer)
    seconds: float = answer["first_batch_s"]
    return seconds
