import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import assume
from hypothesis import strategies as st

from headrace.control.parts import cut_after
from headrace.core.ranges import OffsetRange
from headrace.ledger import Covered, Loss, Status

DONE = (Status.SUCCESS, Status.DEAD)


@dataclass
class Told:
    """A coverage and its losses."""

    rows: list[Covered] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


def a_range(start: int, until: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("orders", partition, start, until)


def covered(
    start: int,
    until: int,
    key: str | None = None,
    *,
    parent: str | None = None,
    has_children: bool = False,
    status: Status = Status.SUCCESS,
    checkpoint_id: str = "run",
    created_ms: int | None = 1,
    topic_id: str | None = None,
) -> Covered:
    key = key or f"batch of {start}"
    offsets = a_range(start, until)
    return Covered(checkpoint_id, key, parent, has_children, status, offsets, created_ms, topic_id)


def in_order(rows: Iterable[Covered]) -> list[Covered]:
    """As the ledger tells them; of those that begin at one offset, in any order, here as given."""

    def place(row: Covered) -> tuple[object, ...]:
        offsets = row.offsets
        return (
            row.checkpoint_id,
            offsets.topic,
            row.topic_id or "",
            offsets.partition,
            offsets.start,
        )

    return sorted(rows, key=place)


@st.composite
def valid_histories(
    draw: st.DrawFn, statuses: Sequence[Status] = tuple(Status), *, may_lose: bool = True
) -> Told:
    """Runs that follow each other, of batches over some partitions, some of them split."""
    told = Told()
    keys = (f"batch {number}" for number in itertools.count())
    partitions = range(draw(st.integers(1, 3)))
    at = dict.fromkeys(partitions, draw(st.integers(0, 5)))

    def add(
        ranges: tuple[OffsetRange, ...], checkpoint_id: str, parent: str | None, depth: int
    ) -> None:
        key = next(keys)
        first, second = cut_after(ranges, (sum(r.count for r in ranges) + 1) // 2)
        split = bool(second) and draw(st.integers(0, 2 + depth)) == 0
        status = draw(st.sampled_from(statuses))
        told.rows += [
            Covered(checkpoint_id, key, parent, split, status, r, len(told.rows)) for r in ranges
        ]
        for half in (first, second) if split else ():
            add(half, checkpoint_id, key, depth + 1)

    for run in range(draw(st.integers(1, 2))):
        for _ in range(draw(st.integers(1, 5))):
            ranges = []
            for partition in partitions:
                if may_lose and draw(st.integers(0, 5)) == 0:
                    lost = a_range(
                        at[partition], at[partition] + draw(st.integers(1, 9)), partition
                    )
                    told.losses.append(Loss("orders", 1, lost))
                    at[partition] = lost.until
                if length := draw(st.integers(0, 9)):
                    ranges.append(a_range(at[partition], at[partition] + length, partition))
                    at[partition] += length
            if ranges:
                add(tuple(ranges), f"run {run}", None, 0)
    assume(told.rows)
    told.rows = in_order(draw(st.permutations(told.rows)))
    return told


def pruned(told: Told) -> Told:
    """The same, with the batches that succeeded without being split pruned."""
    rows: list[Covered] = []
    for row in told.rows:
        last = rows[-1] if rows else None
        if row.parent or row.has_children or row.status is not Status.SUCCESS:
            rows.append(row)
        elif (
            last is not None
            and last.batch_key is None
            and last.checkpoint_id == row.checkpoint_id
            and last.offsets
            == replace(row.offsets, start=last.offsets.start, until=row.offsets.start)
        ):
            rows[-1] = replace(last, offsets=replace(last.offsets, until=row.offsets.until))
        else:
            rows.append(replace(row, batch_key=None, created_time_ms=None))
    return Told(rows, told.losses)
