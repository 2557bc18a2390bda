"""The largest batch that a handler takes, as batches that failed for their size have taught.

A batch failed for its size if it failed whole, and each of its parts passed. With p for the largest
size that passed and f for the smallest that failed, the most that the next batch may have is::

    coarse    min(1.25 p, f)     until one fails      -> fine
    fine      min(1.05 p, f)     until one fails, or 1.05 p >= f      -> settled
    settled   p, and f once in w batches at the ceiling; if that fails, w doubles: 100, 200, 400
    no f      2 p                until one fails      -> coarse

So the climb costs two failures at most after the first one, and ends within 5 % of the limit. A
batch of the size f or more that passes disproves the limit: there is no f then, and the ceiling is
gone once batches stay below it by themselves. A batch that fails at the size p or less begins anew:
the limit has fallen.

The size is counted in records, and in bytes where these are known. As long as both explain what was
seen, the larger of the two holds; a batch that clearly disproves one of them only removes it. If
the last one is disproved, both begin anew.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

from headrace.control.bisection import Isolated
from headrace.errors import OptionError

COARSE: Final = 1.25
"""The step of a climb until a batch fails. More: a shorter climb, and larger batches that fail."""

FREE: Final = 2
"""The step while nothing is known to fail: a limit is gone, or was none."""

FINE: Final = 1.05
"""The step after that; the part of the limit that is never used is this step at most."""

FIRST_WAIT: Final = 100
"""Batches at a ceiling before a larger one is tried."""

MOST_WAIT: Final = 400
"""The same, after larger ones have failed again and again: so late a raised limit is noticed."""

_AT_CEILING: Final = 0.9
"""Part of a ceiling from which on the ceiling has limited a batch; below, something else did."""

_ROUNDING: Final = 1e-6
"""Part of a record that does not count as one more."""

_CLEARLY: Final = 1.1
"""By so much one measure must be right for the other, which is wrong, to be removed."""


class Stage(StrEnum):
    """Stages of a climb."""

    COARSE = "coarse"
    FINE = "fine"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Size of a batch, or of a part of one.

    Attributes:
        records: Its offsets; 1 or more.
        bytes: About how many bytes they are; None where that is not known.
    """

    records: int
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Evidence of a batch that failed whole, and of which every part passed.

    Attributes:
        whole: The batch.
        passed: Its largest part that passed (records).
        failed: Its smallest part that failed, or the batch itself (records).
    """

    whole: BatchSize
    passed: int
    failed: int


@dataclass(frozen=True, slots=True)
class Climb:
    """Bounds of the limit in one measure, records or bytes.

    Attributes:
        passed: The largest size that passed; 1 or more.
        failed: The smallest size that failed, above it; None since one that large has passed.
        stage: Stage of the climb.
        wait: Number of batches at the ceiling between two that are larger.
        left: Number of them that are left until the next one.
    """

    passed: int
    failed: int | None
    stage: Stage
    wait: int = FIRST_WAIT
    left: int = FIRST_WAIT

    @classmethod
    def begin(cls, passed: int, failed: int) -> Self:
        """The climb after a first failure."""
        stage = Stage.COARSE if _step(passed, COARSE) < failed else Stage.FINE
        return cls(passed, failed, stage)._settled()

    @property
    def most(self) -> int:
        """The largest size that the next batch may have."""
        if self.failed is None:
            return _step(self.passed, FREE)
        match self.stage:
            case Stage.COARSE:
                return min(_step(self.passed, COARSE), self.failed)
            case Stage.FINE:
                return min(_step(self.passed, FINE), self.failed)
            case Stage.SETTLED:
                return self.passed if self.left else self.failed

    @property
    def is_trying(self) -> bool:
        """Whether that is more than is known to pass."""
        return self.most > self.passed

    def after_pass(self, size: int) -> Self | None:
        """The climb after a whole batch that passed; None once nothing is left of the ceiling."""
        if self.failed is None:
            if size < _AT_CEILING * self.most:
                return None  # The gate itself wants no more.
            return replace(self, passed=max(size, self.passed))
        if size >= self.failed:
            return replace(
                self,
                passed=size,
                failed=None,
                stage=Stage.COARSE,
                wait=FIRST_WAIT,
                left=FIRST_WAIT,
            )
        left = self.left
        if self.stage is Stage.SETTLED and size >= _AT_CEILING * self.passed:
            left = max(left - 1, 0)
        return replace(self, passed=max(size, self.passed), left=left)._settled()

    def after_failure(self, passed: int, failed: int) -> Self:
        """The climb after a batch that failed for its size; one that was said to pass restarts."""
        if failed <= self.passed:
            return self.begin(passed, failed)
        known = replace(
            self,
            passed=max(passed, self.passed),
            failed=failed if self.failed is None else min(failed, self.failed),
        )
        if known.passed >= (known.failed or 0):
            return self.begin(passed, failed)
        if self.failed is None:
            return self.begin(known.passed, failed)
        match self.stage:
            case Stage.COARSE:
                return replace(known, stage=Stage.FINE)._settled()
            case Stage.FINE:
                return replace(known, stage=Stage.SETTLED, left=self.wait)
            case Stage.SETTLED:
                wait = min(2 * self.wait, MOST_WAIT)
                return replace(known, wait=wait, left=wait)

    def margin_of_pass(self, size: int) -> float:
        """Return the known failed size over one that passed; at most 1 is a contradiction."""
        return math.inf if self.failed is None else self.failed / size

    def margin_of_failure(self, failed: int) -> float:
        """Return a failed size over the known passed one; at most 1 is a contradiction."""
        return failed / self.passed

    def _settled(self) -> Self:
        is_close = self.failed is not None and _step(self.passed, FINE) >= self.failed
        if self.stage is Stage.FINE and is_close:
            return replace(self, stage=Stage.SETTLED, left=self.wait)
        return self


@dataclass(frozen=True, slots=True)
class Cap:
    """The most records of the next batch, and the climb that says so."""

    records: int
    climb: Climb
    in_bytes: bool


@dataclass(frozen=True, slots=True)
class SizeCeiling:
    """Learned limit of the batches that a handler can take; the ledger keeps it with the gate.

    Attributes:
        records: In records; None where the limit is known to be another.
        bytes: The same in bytes; None, too, where the records' sizes are not known.
    """

    records: Climb | None
    bytes: Climb | None = None

    @classmethod
    def begin(cls, split: Split) -> Self:
        """The ceiling after a first batch that failed for its size."""
        in_bytes = _in_bytes(split)
        return cls(
            Climb.begin(split.passed, split.failed),
            None if in_bytes is None else Climb.begin(*in_bytes),
        )

    @property
    def needs_bytes(self) -> bool:
        """Whether it holds for nothing unless the records' sizes are known."""
        return self.records is None

    def describe(self) -> str:
        """Describe the evidence of the ceiling."""
        climbs = ((self.records, False), (self.bytes, True))
        said = [describe_climb(each, in_bytes=unit) for each, unit in climbs if each is not None]
        return " or ".join(said)

    def cap(self, records: int, size_bytes: float | None) -> Cap | None:
        """The most that the next batch may have, of so many records that are about so large.

        None where nothing is known in a measure that can be applied.
        """
        caps = []
        if self.records is not None:
            caps.append(Cap(self.records.most, self.records, in_bytes=False))
        if self.bytes is not None and size_bytes:
            most = self.bytes.most / (size_bytes / max(records, 1))
            # Up to what is tried, and never beyond what is known to pass.
            whole = math.ceil(most - _ROUNDING) if self.bytes.is_trying else int(most + _ROUNDING)
            caps.append(Cap(max(whole, 1), self.bytes, in_bytes=True))
        return max(caps, key=lambda each: each.records, default=None)

    def after_pass(self, size: BatchSize) -> Self | None:
        """The ceiling after a whole batch that passed at once; None where there is none now."""
        climbs = self._known(size)
        margins = {name: climb.margin_of_pass(at) for name, (climb, at) in climbs.items()}
        if (wrong := _disproved(margins)) is not None:
            return replace(self, **{wrong: None}).after_pass(size)
        after: dict[str, Any] = {n: climb.after_pass(at) for n, (climb, at) in climbs.items()}
        if after and all(each is None for each in after.values()):
            return None
        return replace(self, **{name: each for name, each in after.items() if each is not None})

    def after_split(self, split: Split) -> Self:
        """The ceiling after a batch that failed for its size."""
        sizes = {"records": (split.passed, split.failed), "bytes": _in_bytes(split)}
        climbs = self._known(split.whole)
        margins = {
            name: climb.margin_of_failure(at[1])
            for name, (climb, _) in climbs.items()
            if (at := sizes[name]) is not None
        }
        if all(each <= 1 for each in margins.values()):
            return self.begin(split)
        if (wrong := _disproved(margins)) is not None:
            return replace(self, **{wrong: None}).after_split(split)
        after: dict[str, Any] = {
            name: climb.after_failure(*at)
            for name, (climb, _) in climbs.items()
            if (at := sizes[name]) is not None
        }
        return replace(self, **after)

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The opposite of ``to_text``.

        Raises:
            OptionError: It was not written by ``to_text`` of this version.
        """
        try:
            values = json.loads(text)
            ceiling = cls(_climb_from(values["records"]), _climb_from(values["bytes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(text) from error
        if ceiling.records is None and ceiling.bytes is None:
            raise _unreadable(text)
        return ceiling

    def _known(self, size: BatchSize) -> dict[str, tuple[Climb, int]]:
        known: dict[str, tuple[Climb, int]] = {}
        if self.records is not None:
            known["records"] = (self.records, size.records)
        if self.bytes is not None and size.bytes is not None:
            known["bytes"] = (self.bytes, size.bytes)
        return known


def describe_climb(climb: Climb, *, in_bytes: bool = False) -> str:
    """Describe the evidence of a ceiling in one measure.

    >>> describe_climb(Climb.begin(250, 564))
    '564 records at once failed, 250 passed'
    """
    unit = "bytes" if in_bytes else "records"
    if climb.failed is None:
        return f"{climb.passed} {unit} at once passed, and more is tried"
    return f"{climb.failed} {unit} at once failed, {climb.passed} passed"


def split_of(whole: BatchSize, isolated: Isolated[Any]) -> Split | None:
    """Return the evidence of an isolation about its batch's size; None if that was not the reason.

    A part of it was convicted or left, or one that failed is no larger than one that passed.
    """
    passed, failed = isolated.largest_passed, isolated.smallest_failed
    if not isolated.is_whole or failed is None or not 0 < passed < failed <= whole.records:
        return None
    return Split(whole, passed, failed)


def learn_from(ceiling: SizeCeiling | None, split: Split) -> SizeCeiling:
    """The ceiling after a batch that failed for its size, with or without one before."""
    return SizeCeiling.begin(split) if ceiling is None else ceiling.after_split(split)


def known_ceiling(text: str | None) -> SizeCeiling | None:
    """The ceiling that a ledger has; None without one, and where another version wrote it."""
    try:
        return None if text is None else SizeCeiling.from_text(text)
    except OptionError:
        return None


def _disproved(margins: Mapping[str, float]) -> str | None:
    """Return the measure that contradicts the observation, if the other one clearly explains it."""
    if len(margins) < 2:
        return None
    wrong, right = sorted(margins, key=lambda name: margins[name])
    is_clear = margins[right] >= _CLEARLY * margins[wrong]
    return wrong if margins[wrong] <= 1 < margins[right] and is_clear else None


def _step(size: int, by: float) -> int:
    return max(int(size * by), size + 1)


def _in_bytes(split: Split) -> tuple[int, int] | None:
    """The parts' sizes in bytes, which are in proportion to their records."""
    if split.whole.bytes is None:
        return None
    mean = split.whole.bytes / max(split.whole.records, 1)
    passed = max(int(split.passed * mean), 1)
    return passed, max(int(split.failed * mean), passed + 1)


def _climb_from(values: dict[str, Any] | None) -> Climb | None:
    if values is None:
        return None
    climb = Climb(**values | {"stage": Stage(values["stage"])})
    numbers = (climb.passed, climb.wait, climb.left, climb.passed + 1)
    failed = climb.passed + 1 if climb.failed is None else climb.failed
    if any(type(each) is not int for each in (*numbers, failed)) or not (
        1 <= climb.passed < failed
        and 1 <= climb.wait <= MOST_WAIT
        and 0 <= climb.left <= climb.wait
    ):
        raise ValueError(values)
    return climb


def _unreadable(text: str) -> OptionError:
    return OptionError(
        f"The ceiling of a gate's batches is {text!r}; this version of Headrace reads only what it"
        " writes itself, so it is learnt anew."
    )
