"""What is found after a story of crashes, and what is wrong with it.

The records that were produced are known from outside. Each has as its value where it went,
``partition/offset``, so that the value alone says which record it is.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headgate.control import OffsetRange, TopicPartition
from headgate.ledger import Ledger, Status


@dataclass(frozen=True)
class Run:
    """One call of the handler."""

    key: str
    batch_id: int
    attempt: int
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True)
class Evidence:
    """What there is to judge.

    Attributes:
        produced: how many records each partition was given.
        arrived: the values that the sink has under each batch's key.
        runs: the handler's calls, in their order.
        planned: the ledger's ranges of each batch, by key.
        unsettled: the keys of batches that are no success in the ledger.
    """

    produced: Mapping[TopicPartition, int]
    arrived: Mapping[str, tuple[str, ...]]
    runs: tuple[Run, ...]
    planned: Mapping[str, tuple[OffsetRange, ...]]
    unsettled: frozenset[str] = frozenset()


def collect(folder: Path, produced: Mapping[TopicPartition, int]) -> Evidence:
    """What a driver has left in its folder."""
    arrived = {
        file.stem: tuple(value for value, _executor in json.loads(file.read_text()))
        for file in (folder / "sink").glob("*.json")
    }
    runs = [json.loads(line) for line in (folder / "runs").read_text().splitlines()]
    with Ledger.open(f"sqlite:///{folder}/headgate.db", create=False) as ledger:
        batches = ledger.batches("orders", limit=1_000_000)
        planned = {
            batch.schedule_id: tuple(each.offsets for each in ledger.ranges(batch.schedule_id))
            for batch in batches
        }
    return Evidence(
        produced=produced,
        arrived=arrived,
        runs=tuple(
            Run(r["key"], r["id"], r["attempt"], tuple(OffsetRange(*each) for each in r["ranges"]))
            for r in runs
        ),
        planned=planned,
        unsettled=frozenset(b.schedule_id for b in batches if b.status is not Status.SUCCESS),
    )


def problems(evidence: Evidence) -> list[str]:
    """Every breach of: each record arrives, once; a batch stays the same however often it runs."""
    return [
        *_of_records(evidence),
        *_of_runs(evidence.runs),
        *_of_ranges(evidence.planned.values(), evidence.produced),
        *(f"batch {key} is not settled" for key in sorted(evidence.unsettled)),
        *(
            f"batch {run.key} ran with other ranges than the ledger has"
            for run in evidence.runs
            if run.ranges != evidence.planned.get(run.key)
        ),
    ]


def values(ranges: Iterable[OffsetRange]) -> Iterator[str]:
    """The values of the records in these ranges."""
    return (f"{r.partition}/{offset}" for r in ranges for offset in range(r.start, r.until))


def _of_records(evidence: Evidence) -> Iterator[str]:
    arrived = Counter(value for found in evidence.arrived.values() for value in found)
    produced = set(values(OffsetRange(*tp, 0, count) for tp, count in evidence.produced.items()))
    yield from (f"record {value} is missing" for value in sorted(produced - arrived.keys()))
    yield from (f"record {value} was never produced" for value in sorted(arrived.keys() - produced))
    yield from (
        f"record {value} arrived {count} times" for value, count in arrived.items() if count > 1
    )
    for key, found in evidence.arrived.items():
        if sorted(found) != sorted(values(evidence.planned.get(key, ()))):
            yield f"batch {key} has other records than its ranges say"


def _of_runs(runs: Iterable[Run]) -> Iterator[str]:
    by_id: dict[int, set[str]] = defaultdict(set)
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_id[run.batch_id].add(run.key)
        by_key[run.key].append(run)
    for batch_id, keys in by_id.items():
        if len(keys) > 1:
            yield f"Spark's batch {batch_id} ran under {len(keys)} keys"
    for key, same in by_key.items():
        if len({run.batch_id for run in same}) > 1:
            yield f"key {key} was given to several of Spark's batches"
        if len({run.ranges for run in same}) > 1:
            yield f"batch {key} ran with different ranges"
        attempts = [run.attempt for run in same]
        if attempts != sorted(set(attempts)):
            yield f"the attempts at batch {key} were counted {attempts}"


def _of_ranges(
    batches: Iterable[tuple[OffsetRange, ...]], produced: Mapping[TopicPartition, int]
) -> Iterator[str]:
    by_partition: dict[TopicPartition, list[OffsetRange]] = {tp: [] for tp in produced}
    for ranges in batches:
        for each in ranges:
            by_partition.setdefault(each.topic_partition, []).append(each)
    for tp, found in by_partition.items():
        reached = 0
        for each in sorted(found):
            if each.start != reached:
                yield f"{each} does not begin at {reached}, where the range before it ends"
            reached = each.until
        if reached != produced.get(tp, 0):
            yield f"the ranges of {tp} end at {reached}, not at {produced.get(tp, 0)}"
