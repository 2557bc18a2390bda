"""The fixed cost of a batch: small ones, one at once after the other."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress

from bench.figures import AtMost, Figure
from bench.pairs import in_turn
from bench.scale import Scale
from bench.sides import HEADRACE, NATIVE, gated_stream, running, stream, wait_for_batches
from bench.stage import Stage
from headrace.gate.execution.gate import Gate

VALUE_BYTES: Final = 200
PROMISED: Final = AtMost(1.25)
GATED: Final = "headrace-kafka behind a gate"

PLENTY: Final = 1_000_000
"""A rate (records/s) that never limits a batch here, so that those behind the gate are as large."""


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """The source alone and behind a gate, each beside the native one, in the same rounds."""
    for partitions in scale.small_batch_partitions:
        # No more than that: a query is stopped when it has nothing to do, so without a noise.
        rows = scale.small_batch_rows * scale.small_batches
        topic = stage.topics.random(partitions, rows, VALUE_BYTES)
        sides: dict[str, Callable[[], DataFrame]] = {
            NATIVE: partial(_plain, stage, NATIVE, topic, scale),
            HEADRACE: partial(_plain, stage, HEADRACE, topic, scale),
            GATED: partial(_gated, stage, topic, scale),
        }
        phases: dict[str, dict[str, float]] = {}
        times_ms = in_turn(
            {
                side: partial(_batch_ms, stage, scale, side, df, phases)
                for side, df in sides.items()
            },
            scale.pairs,
            warm_ups=min(scale.warm_ups, 1),
        )
        for side, words in ((HEADRACE, ""), (GATED, ", gated")):
            yield Figure.side_by_side(
                f"{scale.small_batch_rows} rows, {partitions} partitions{words}",
                "ms",
                headrace=times_ms[side],
                native=times_ms[NATIVE],
                target=PROMISED,
                details={"phases_ms": {"headrace": phases[side], "native": phases[NATIVE]}},
            )


def _plain(stage: Stage, source: str, topic: str, scale: Scale) -> DataFrame:
    return stream(stage, source, topic, {"maxOffsetsPerTrigger": scale.small_batch_rows})


def _gated(stage: Stage, topic: str, scale: Scale) -> DataFrame:
    """Everything that a gate does, with batches of the same size."""
    gate = Gate("small-batches", interval="1 second", ledger=stage.fresh_ledger())
    options = {
        "maxOffsetsPerTrigger": scale.small_batch_rows,
        "backpressure.initialRate": PLENTY,
        "backpressure.pid.minRate": PLENTY,
    }
    return gated_stream(stage, gate, topic, options)


def _batch_ms(
    stage: Stage,
    scale: Scale,
    side: str,
    df: Callable[[], DataFrame],
    phases: dict[str, dict[str, float]],
) -> float:
    """The median time of one run's batches; what Spark's phases took goes to ``phases``."""
    writer = df().writeStream.format("noop").trigger(processingTime="0 seconds")
    with running(writer, stage.fresh_folder("checkpoint")) as query:
        progress = wait_for_batches(query, scale.small_batches)[scale.skipped_batches :]
    assert {p.numInputRows for p in progress} == {scale.small_batch_rows}, (
        f"{side} had batches of {sorted({p.numInputRows for p in progress})} rows"
    )
    phases[side] = _phases_ms(progress)
    return phases[side]["triggerExecution"]


def _phases_ms(progress: Sequence[StreamingQueryProgress]) -> dict[str, float]:
    """The median time of each phase of a batch."""
    return {name: median(p.durationMs[name] for p in progress) for name in progress[0].durationMs}
