"""Evidence after a story of crashes, and its faults.

The records that were produced are known from outside. Each has as its value where it went,
``partition/offset``, so that the value alone says which record it is.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.recovery.job import GATE, Job
from tests.recovery.sinks import READERS

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.gate.control.parts import above, ranges_of
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import DEFECTS, FindingKind
from headrace.gate.ledger.records import part_key, part_of
from headrace.gate.ledger.transitions import Status


@dataclass(frozen=True)
class Run:
    """One call of the handler; ``raised`` if it is known to have raised."""

    key: str
    batch_id: int | None
    attempt: int
    ranges: tuple[OffsetRange, ...]
    kind: str = "live"
    raised: bool = False
    sequence: int = 0


@dataclass(frozen=True)
class Evidence:
    """Evidence to judge.

    Attributes:
        produced: the number of records that each partition was given.
        arrived: the values that the sink has under each batch's key.
        runs: the handler's calls, in their order.
        planned: the ranges of each batch in the ledger, and of each part that was run, by key.
        unsettled: the keys of batches that are no success in the ledger.
        letters: the values of the dead letters.
        poison: the values of the records that cannot be processed.
        unproven: the errors and open points that the ledger's own proof finds.
    """

    produced: Mapping[TopicPartition, int]
    arrived: Mapping[str, tuple[str, ...]]
    runs: tuple[Run, ...]
    planned: Mapping[str, tuple[OffsetRange, ...]]
    unsettled: frozenset[str] = frozenset()
    letters: tuple[str, ...] = ()
    poison: frozenset[str] = frozenset()
    unproven: tuple[str, ...] = ()


def collect(job: Job, produced: Mapping[TopicPartition, int]) -> Evidence:
    """Collect the evidence that the drivers of a job have left."""
    arrived = READERS[job.sink](job) if job.sink else _files(job)
    with Ledger.open(job.ledger, create=False) as ledger:
        batches = ledger.batches.newest(GATE, limit=1_000_000)
        letters = ledger.dead_letters.oldest(GATE, limit=1_000_000)
        planned = {
            batch.batch_key: tuple(each.offsets for each in ledger.batches.ranges(batch.batch_key))
            for batch in batches
        }
        found = ledger.proofs.verify(GATE).findings
    runs = tuple(_runs((job.path / "runs").read_text().splitlines()))
    for key in {run.key for run in runs} | arrived.keys():
        batch, path = part_of(key)
        planned[key] = ranges_of(planned.get(batch, ()), path)
    return Evidence(
        produced=produced,
        arrived=arrived,
        runs=runs,
        planned=planned,
        unsettled=frozenset(b.batch_key for b in batches if b.status is not Status.SUCCESS),
        letters=tuple((kept.letter.value or b"").decode() for kept in letters),
        poison=frozenset(job.poison),
        unproven=tuple(
            f"{finding.kind} {finding.offsets}"
            for finding in found
            if finding.kind in {*DEFECTS, FindingKind.OPEN}
        ),
    )


def _files(job: Job) -> dict[str, tuple[str, ...]]:
    return {
        file.stem: tuple(value for value, _executor in json.loads(file.read_text()))
        for file in (job.path / "sink").glob("*.json")
    }


def _runs(lines: Iterable[str]) -> Iterator[Run]:
    run: Run | None = None
    for told in map(json.loads, lines):
        if run is not None:
            raised = told.get("raised") == run.key
            yield replace(run, raised=raised)
        ranges = tuple(OffsetRange(*each) for each in told.get("ranges", ()))
        run = (
            None
            if "raised" in told
            else Run(
                told["key"],
                told["id"],
                told["attempt"],
                ranges,
                told["kind"],
                sequence=told["sequence"],
            )
        )
    if run is not None:
        yield run


def problems(evidence: Evidence) -> list[str]:
    """Every breach of what is promised.

    Each record arrives once, or is a dead letter if it cannot be processed; a batch stays the same
    however often it runs; whatever raised is run again, divided, or a dead letter.
    """
    return [
        *_of_records(evidence),
        *_of_runs(evidence),
        *_of_failures(evidence),
        *_of_ranges(evidence),
        *(f"the ledger's proof finds: {found}" for found in evidence.unproven),
        *(f"batch {key} is not settled" for key in sorted(evidence.unsettled)),
        *(
            f"batch {run.key} ran with other ranges than the ledger has"
            for run in evidence.runs
            if run.ranges != evidence.planned.get(run.key)
        ),
    ]


def require_sound(evidence: Evidence) -> None:
    """Raise an AssertionError with every breach of what is promised."""
    found = problems(evidence)
    assert not found, "\n".join(found)


def values(ranges: Iterable[OffsetRange]) -> Iterator[str]:
    """The values of the records in these ranges."""
    return (f"{r.partition}/{offset}" for r in ranges for offset in range(r.start, r.until))


def _of_records(evidence: Evidence) -> Iterator[str]:
    arrived = Counter(value for found in evidence.arrived.values() for value in found)
    buried = Counter(evidence.letters)
    produced = set(values(OffsetRange(*tp, 0, count) for tp, count in evidence.produced.items()))
    there = arrived + buried
    yield from (f"record {value} is missing" for value in sorted(produced - there.keys()))
    yield from (f"record {value} was never produced" for value in sorted(there.keys() - produced))
    yield from (
        f"record {value} arrived {count} times" for value, count in there.items() if count > 1
    )
    sound = sorted(buried.keys() - evidence.poison)
    yield from (f"record {value} is a dead letter without need" for value in sound)
    for key, found in evidence.arrived.items():
        if sorted(found) != sorted(values(evidence.planned.get(key, ()))):
            yield f"batch {key} has other records than its ranges say"


def _of_runs(evidence: Evidence) -> Iterator[str]:
    by_id: dict[int, set[str]] = defaultdict(set)
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in evidence.runs:
        by_key[run.key].append(run)
        if (run.batch_id is None) != ("." in run.key or run.kind == "backfill"):
            yield f"batch {run.key} ({run.kind}) was given the number {run.batch_id} of Spark's"
        if run.batch_id is not None:
            by_id[run.batch_id].add(run.key)
    for before, after in pairwise(evidence.runs):
        if before.sequence >= after.sequence:
            yield f"run {after.sequence} of batch {after.key} came after run {before.sequence}"
    for batch_id, keys in by_id.items():
        if len(keys) > 1:
            yield f"Spark's batch {batch_id} ran under {len(keys)} keys"
    for key, same in by_key.items():
        if len({run.batch_id for run in same} - {None}) > 1:
            yield f"key {key} was given to several of Spark's batches"
        if len({run.ranges for run in same}) > 1:
            yield f"batch {key} ran with different ranges"
        # A backfill's first attempt goes on with the count of the live stream's last, and one that
        # runs a record several times counts one attempt.
        attempts = [(run.attempt, run.kind == "backfill") for run in same]
        live = [attempt for attempt, is_backfill in attempts if not is_backfill]
        if attempts != sorted(attempts) or len(live) != len(set(live)):
            yield f"the attempts at batch {key} were counted {[run.attempt for run in same]}"


def _of_failures(evidence: Evidence) -> Iterator[str]:
    last = {run.key: run for run in evidence.runs}
    passed = {key for key, run in last.items() if not run.raised}
    for key, run in last.items():
        batch, path = part_of(key)
        whole = {part_key(batch, part) for part in above(path)} if path else set()
        divided = {other for other in last if other != key and other.startswith(key)}
        is_kept = {*values(run.ranges)} <= {*evidence.letters}
        if run.raised and not (divided or is_kept or passed & whole):
            yield f"batch {key} raised, and nothing was done about it"


def _of_ranges(evidence: Evidence) -> Iterator[str]:
    by_partition: dict[TopicPartition, list[OffsetRange]] = {tp: [] for tp in evidence.produced}
    for key, ranges in evidence.planned.items():
        for each in ranges if "." not in key else ():
            by_partition.setdefault(each.topic_partition, []).append(each)
    for tp, found in by_partition.items():
        reached = 0
        for each in sorted(found):
            if each.start != reached:
                yield f"{each} does not begin at {reached}, where the range before it ends"
            reached = each.until
        if reached != evidence.produced.get(tp, 0):
            yield f"the ranges of {tp} end at {reached}, not at {evidence.produced.get(tp, 0)}"
