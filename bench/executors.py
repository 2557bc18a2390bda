"""A gated query on one, two and four executors: rows a second, and the time of a batch."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from bench.figures import Figure
from bench.pairs import Spread, in_turn
from bench.postgresql import a_postgresql, fresh_schema, watching
from bench.processes import on_a_cluster
from bench.scale import Scale
from bench.small_batch import PLENTY, VALUE_BYTES
from bench.stage import Stage

PARTITIONS: Final = 8
JOBS: Final = {"reads": False, "waits for its sink": True}
"""A job that needs the machine's cores, and one that needs none of them."""


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Each number of executors in turn, with the ledger in PostgreSQL."""
    topic = stage.topics.random(
        PARTITIONS, scale.executor_rows * (scale.executor_batches + 1), VALUE_BYTES
    )
    with a_postgresql(stage) as database:
        for job, waits in JOBS.items():
            runs: dict[str, Callable[[], float]] = {}
            found: dict[str, list[dict[str, Any]]] = {}
            for executors in scale.executors:
                name = f"{executors} executors, a job that {job}"
                found[name] = []
                cluster = {"executors": executors, "waits": waits}
                read = (topic, database)
                runs[name] = partial(_batch_ms, stage, scale, read, cluster, found[name])
            for name, of_batch_ms in in_turn(runs, scale.pairs, warm_ups=0).items():
                rates = [found[name][0]["rows"] / ms * 1000 for ms in of_batch_ms]
                details = {"connections": max(each["connections"] for each in found[name])}
                yield Figure(f"{name}: batch", "ms", Spread.of(of_batch_ms), details=details)
                yield Figure(f"{name}: rows", "/s", Spread.of(rates))


def _batch_ms(
    stage: Stage,
    scale: Scale,
    read: tuple[str, str],
    cluster: dict[str, Any],
    found: list[dict[str, Any]],
) -> float:
    """The time of a batch of a topic, with a ledger in a database; kept with what else is found."""
    topic, database = read
    options = {
        "kafka.bootstrap.servers": stage.topics.servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(scale.executor_rows),
        "backpressure.initialRate": str(PLENTY),
        "backpressure.pid.minRate": str(PLENTY),
    }
    with fresh_schema(database) as ledger, watching(database) as server:
        answer = on_a_cluster(
            **cluster,
            options=options,
            folder=str(stage.fresh_folder("cluster")),
            ledger=ledger,
            batches=scale.executor_batches,
            skipped=scale.skipped_batches,
        )
    found.append(answer | {"connections": server.connections})
    took_ms: float = answer["ms"]
    return took_ms
