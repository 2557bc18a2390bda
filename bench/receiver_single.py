"""Requests a second and how long each waits, beside Kafka with a flush for each message."""

import shutil
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any, Final

from bench.figures import AtLeast, AtMost, Figure
from bench.load.records import chunk
from bench.pairs import Spread, in_turn, ratios
from bench.processes import POSTS, receiver, send
from bench.receiver_delay import tail
from bench.scale import Scale
from bench.stage import Stage
from bench.synced import synced_writes

HEADRACE: Final = "headrace"
KAFKA: Final = "kafka"

REQUESTS: Final = ((1, 1), (1, 16), (1, 64), (500, 16))
"""Records in each, and connections that each wait for their answer."""

PROMISED: Final = {1: AtLeast(1), 500: AtLeast(200_000)}
"""Target for single records: the rate beside Kafka's; for 500: the records a second."""

SYNCS: Final = 3
WARM_UP_REQUESTS: Final = 200


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Each kind of request in turn with Kafka, in the same rounds."""
    topic = stage.topics.empty(1, {"flush.messages": "1"})
    syncs_ms = [1000 * each for each in synced_writes(stage.folder, chunk(1), scale.repetitions)]
    yield Figure("a block of one record, written and synced", "ms", Spread.of(syncs_ms))
    for each, connections in REQUESTS:
        found: dict[str, list[Any]] = {HEADRACE: [], KAFKA: []}
        how = {"records": scale.single_requests * each, "each": each, "connections": connections}
        rates = in_turn(
            {
                HEADRACE: partial(_rate, stage, how, found[HEADRACE]),
                KAFKA: partial(_kafka_rate, stage, topic, how, found[KAFKA]),
            },
            scale.pairs,
            min(scale.warm_ups, 1),
        )
        kept = {side: delays[-scale.pairs :] for side, delays in found.items()}
        yield from _figures(each, connections, rates, kept, median(syncs_ms))


def _figures(
    each: int,
    connections: int,
    rates: dict[str, list[float]],
    delays_ms: dict[str, list[list[float]]],
    sync_ms: float,
) -> Iterator[Figure]:
    name = f"HTTP, {each} a request, {connections} connections"
    yield Figure(
        name,
        "records/s",
        Spread.of(rates[HEADRACE]),
        Spread.of(rates[KAFKA]),
        ratios(rates[HEADRACE], to=rates[KAFKA]),
        PROMISED[each],
        {"rates_per_s": rates, "kafka": "flush.messages=1, acks=all, linger.ms=0"},
        absolute=each > 1,
    )
    for part, of, target in (
        ("median", median, None),
        ("99 %", tail, AtMost(round(SYNCS * sync_ms, 1)) if each == 1 else None),
    ):
        ours, theirs = ([of(one) for one in delays_ms[side]] for side in (HEADRACE, KAFKA))
        yield Figure(
            f"{name}: {part}",
            "ms",
            Spread.of(ours),
            Spread.of(theirs),
            ratios(ours, to=theirs),
            target,
            {"sync_ms": sync_ms},
            absolute=True,
        )


def _rate(stage: Stage, how: dict[str, int], found: list[list[float]]) -> float:
    journal = stage.fresh_folder("journal")
    with receiver(journal, POSTS) as listening:
        send("posts.all_at_once", port=listening.port, **how | _warm_up(how))
        answer = send("posts.all_at_once", port=listening.port, **how)
    # Many small files stay until the end, as in use: for half a minute after thousands of files
    # were removed, ext4 takes several times as long to make one, and the next round shows that.
    if how["each"] > 1:
        shutil.rmtree(journal)
    found.append(answer["delays_ms"])
    return float(how["records"] / answer["seconds"])


def _kafka_rate(stage: Stage, topic: str, how: dict[str, int], found: list[list[float]]) -> float:
    where = {"servers": stage.topics.servers, "topic": topic}
    send("produced.all_at_once", **where, **how | _warm_up(how))
    answer = send("produced.all_at_once", **where, **how)
    found.append(answer["delays_ms"])
    return float(how["records"] / answer["seconds"])


def _warm_up(how: dict[str, int]) -> dict[str, int]:
    return {"records": min(WARM_UP_REQUESTS * how["each"], how["records"])}
