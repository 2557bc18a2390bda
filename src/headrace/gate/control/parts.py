"""Parts of a batch: paths in a binary tree over its planned offsets, and the batch's progress.

A part is a path of ``0`` and ``1``: ``""`` is the batch, ``"0"`` its first half, ``"01"`` the
second half of the first half. Halves divide the planned offsets, not the offsets that are still in
the log. So the halves are the same after every restart, even if the log has lost offsets. Each
partition's range is cut in its middle, so a part has all partitions, and in each partition ``"0"``
comes before ``"1"``.

Of two parts, one contains the other, or they are disjoint. So a sink needs only the key of a part,
`<batch>.01`, and the keys of the enclosing parts to know whether it has the part's rows. This also
holds for a process whose lease ended while it was frozen: it finds the rows that another process
has written meanwhile. A key contains a point, not a slash, because keys also name folders. A set of
offsets that is not a half consists of several parts, and takes about log2(n) more runs. An example
is the rest of a batch after a sample of it has been run.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Self

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError

Ranges = tuple[OffsetRange, ...]

WHOLE: Final = ""
"""Path of the whole batch."""

_MAX_TEXT: Final = 1_000_000
"""Longest text that `Progress.from_text` parses (characters)."""


def size(records: int, path: str) -> int:
    """Return the number of offsets in a part of a batch that has ``records`` offsets.

    The result is 0 if the batch is too small to have this part.

    >>> [size(7, path) for path in ("", "0", "1", "11", "111")]
    [7, 4, 3, 1, 0]
    """
    for half in path:
        records = (records + (half == "0")) // 2 if records > 1 else 0
    return records


def halves(path: str) -> tuple[str, str]:
    """Return the two halves of a part that has more than one offset."""
    return path + "0", path + "1"


def beside(part: str, inner: str) -> list[str]:
    """Return the parts that together with ``inner`` make up ``part``, the largest first.

    >>> beside("1", "1011")
    ['11', '100', '1010']
    """
    return [inner[:at] + "10"[int(inner[at])] for at in range(len(part), len(inner))]


def above(path: str) -> list[str]:
    """Return the larger parts that contain a part: its parent first, the whole batch last."""
    return [path[:at] for at in range(len(path) - 1, -1, -1)]


def is_within(part: str, others: Iterable[str]) -> bool:
    """Whether any part in ``others`` is equal to ``part`` or contains it."""
    return any(part.startswith(path) for path in others)


def ranges_of(planned: Sequence[OffsetRange], path: str) -> Ranges:
    """Return the offset ranges of a part, in the order of the batch's planned ranges.

    >>> both = [OffsetRange("orders", p, 0, 5) for p in (0, 1)]
    >>> [[str(r) for r in ranges_of(both, path)] for path in ("0", "1")]
    [['orders-0 [0, 3)', 'orders-1 [0, 2)'], ['orders-0 [3, 5)', 'orders-1 [2, 5)']]
    """
    ranges = tuple(planned)
    for half in path:
        ranges = _halved(ranges)[int(half)]
    return ranges


def path_of(planned: Sequence[OffsetRange], topic: str, partition: int, offset: int) -> str | None:
    """Return the part that contains only this offset; None for an offset outside of the batch."""

    def is_in(ranges: Ranges) -> bool:
        return any(
            (r.topic, r.partition) == (topic, partition) and r.start <= offset < r.until
            for r in ranges
        )

    ranges, path = tuple(planned), WHOLE
    if not is_in(ranges):
        return None
    while sum(r.count for r in ranges) > 1:
        first, second = _halved(ranges)
        path, ranges = (path + "0", first) if is_in(first) else (path + "1", second)
    return path


def _halved(ranges: Ranges) -> tuple[Ranges, Ranges]:
    before, after = list[OffsetRange](), list[OffsetRange]()
    spare = 1
    for whole in ranges:
        cut = whole.start + (whole.count + spare) // 2
        spare ^= whole.count % 2
        if whole.start < cut:
            before.append(OffsetRange(whole.topic, whole.partition, whole.start, cut))
        if cut < whole.until:
            after.append(OffsetRange(whole.topic, whole.partition, cut, whole.until))
    return tuple(before), tuple(after)


def joined(parts: Iterable[str]) -> frozenset[str]:
    """Merge parts: replace each pair of halves by the part that they make up.

    >>> sorted(joined(["00", "01", "10"]))
    ['0', '10']
    """
    waiting, out = sorted(set(parts), key=len), set[str]()
    while waiting:
        path = waiting.pop()
        twin = path[:-1] + "10"[int(path[-1])] if path else None
        if twin in out:
            out.discard(twin)
            waiting.append(path[:-1])
            waiting.sort(key=len)
        else:
            out.add(path)
    return frozenset(out)


def rest(done: Collection[str], within: str = WHOLE) -> list[str]:
    """Return the unfinished parts within a part, as few and large as possible, in path order.

    >>> rest(["01", "110"])
    ['00', '10', '111']
    """
    if within in done:
        return []
    below = [path for path in done if path.startswith(within)]
    if not below:
        return [within]
    return [part for half in halves(within) for part in rest(below, half)]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a batch that is run in parts.

    Attributes:
        done: Parts that have passed, or were stored as dead letters, merged into the fewest parts.
        running: The part of the current handler call; None between calls. It is stored before the
            call.
        unknown: Parts whose run was interrupted, so that the sink may have their records.
        halved: Parts that have failed or contain a failed part. These parts are never run as a
            whole again.
        runs: Number of handler calls with parts so far.
        evidence: The serialized state of a test of suspects (`Bisection.evidence`); empty without
            a test.
    """

    done: frozenset[str] = frozenset()
    running: str | None = None
    unknown: frozenset[str] = frozenset()
    halved: frozenset[str] = frozenset()
    runs: int = 0
    evidence: str = ""

    @property
    def open(self) -> list[str]:
        """The parts still to be run, as few as possible, in path order.

        A part with an unknown outcome is not merged with other parts.
        """
        waiting, parts = rest([*self.done, *self.unknown]), list(self.unknown)
        while waiting:
            part = waiting.pop()
            if part in self.halved:
                waiting += halves(part)
            else:
                parts.append(part)
        return sorted(parts)

    def with_done(self, part: str) -> Self:
        """Return this progress with one more finished part."""
        finished = joined({*self.done, part})
        halved = frozenset(path for path in self.halved if not is_within(path, finished))
        return replace(self, done=finished, unknown=self.unknown - {part}, halved=halved)

    def records_left(self, records: int) -> int:
        """Return the number of unfinished offsets of a batch with ``records`` offsets."""
        return records - sum(size(records, path) for path in self.done)

    def to_text(self) -> str:
        """Serialize the progress for the ledger."""
        return json.dumps(
            {
                "done": sorted(self.done),
                "running": self.running,
                "unknown": sorted(self.unknown),
                "halved": sorted(self.halved),
                "runs": self.runs,
                "evidence": self.evidence,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str, records: int, batch: str) -> Self:
        """Parse a progress that `to_text` has serialized, for a batch with ``records`` offsets.

        Raises:
            LedgerError: The text is not a valid progress of a batch with this number of offsets.
        """
        try:
            values: Any = json.loads(text) if len(text) <= _MAX_TEXT else None
            finished, running, unknown = values["done"], values["running"], values["unknown"]
            halved = values["halved"]
            progress = cls(
                *(frozenset(finished), running, frozenset(unknown), frozenset(halved)),
                *(values["runs"], values["evidence"]),
            )
            parts = sorted([*finished, *unknown])
            is_whole = set(values) == set(cls.__slots__) and type(progress.runs) is int
            is_whole &= isinstance(progress.evidence, str)
            is_whole &= all(
                isinstance(part, str) and not part.strip("01") and size(records, part) > 0
                for part in [*parts, *([] if running is None else [running])]
            )
            is_whole &= all(
                isinstance(part, str) and not part.strip("01") and size(records, part) > 1
                for part in halved
            )
            # In sorted order, a part stands right before the parts that it contains.
            is_whole &= not any(second.startswith(first) for first, second in pairwise(parts))
        except (ValueError, KeyError, TypeError, RecursionError):
            is_whole = False
        if not is_whole:
            raise LedgerError(
                f"Batch {batch} is not run, because its progress in the ledger is not valid for"
                f" {records} offsets; restore the ledger from a copy. The progress is"
                f" {text[:200]!r}."
            )
        return progress
