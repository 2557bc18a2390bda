"""A batch's life as a law: whatever its sink does, each offset has one fate."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from headrace.core.ranges import OffsetRange
from headrace.gate.control.bisection import IsolationBudget
from headrace.gate.control.hold import Held, OnOutage, OutageSettings
from headrace.gate.control.life import (
    MOST_DOUBTFUL,
    MOST_UNTOLD,
    Call,
    End,
    Ending,
    Failure,
    Life,
    Pause,
    Reject,
    Terms,
    Verdict,
    Waited,
    live,
)
from headrace.gate.control.parts import WHOLE, Progress, ranges_of

HOURS_MS = 100_000_000


def failure(verdict: Verdict, error: Exception | None = None, **said: bool) -> Failure:
    said.setdefault("is_unreached", verdict is Verdict.AWAY)
    said.setdefault("is_blameless", verdict in {Verdict.UNREAD, Verdict.WRONG, Verdict.PARTLY_IN})
    error = error or RuntimeError(verdict.name)
    return Failure(verdict, error, error, **said)


def a_life(
    terms: Terms,
    held: Held | None = None,
    *,
    progress: Progress = Progress(),  # noqa: B008  (frozen)
    seed: int = 0,
    now_ms: Callable[[], int] = lambda: HOURS_MS,
) -> Life:
    dice = random.Random(seed)
    return Life(
        terms,
        progress,
        failure(Verdict.RECORDS),
        held,
        in_parts=set(),
        now_ms=now_ms,
        timer_ms=lambda: 0,
        shuffle=dice.shuffle,
        chance=dice.random,
    )


ISOLATES = Terms(40, "isolate")


def after(calls: int, terms: Terms = ISOLATES, verdict: Verdict = Verdict.AWAY) -> str:
    """What follows the failed call of this number, the first being 1."""
    certain = verdict is Verdict.AWAY
    held = Held(HOURS_MS - 60_000, calls - 1, 0, certain) if calls > 1 else None
    life = a_life(terms, held)
    if held is not None:
        pause = life.next(0, is_down=False)
        assert isinstance(pause, Pause)
        life.note_waited(pause, Waited.OVER)
    call = life.next(0, is_down=False)
    assert call == Call(WHOLE, Progress(), Progress())
    life.note(call, failure(verdict))
    match life.next(0, is_down=False):
        case Pause():
            return "wait"
        case Call(part):
            assert part != WHOLE
            return "parts"
        case End(kind):
            return kind.name
    raise AssertionError


def test_a_sink_that_is_away_is_waited_for_without_end_and_seldom_tried_in_parts() -> None:
    steps = {calls: after(calls) for calls in range(1, 600)}
    assert [calls for calls, step in steps.items() if step == "parts"] == [
        4,
        8,
        16,
        32,
        64,
        128,
        256,
        512,
    ]
    assert set(steps.values()) == {"wait", "parts"}
    whole = replace(ISOLATES, keeps_key=True)
    assert {after(calls, whole) for calls in range(1, 600)} == {"wait"}
    assert {after(calls, Terms(40, "stop")) for calls in range(1, 600)} == {"wait"}


@pytest.mark.parametrize(
    ("terms", "verdict", "waits"),
    [
        (ISOLATES, Verdict.RECORDS, MOST_DOUBTFUL - 2),
        (Terms(2, "isolate"), Verdict.AWAY, MOST_UNTOLD - 1),
    ],
)
def test_a_hold_that_proves_nothing_ends_after_a_bounded_number_of_calls(
    terms: Terms, verdict: Verdict, waits: int
) -> None:
    steps = [after(calls, terms, verdict) for calls in range(1, 100)]
    assert steps.count("wait") == waits
    assert set(steps[20:]) == {"DEFERRED"}


@pytest.mark.parametrize(
    ("terms", "step"),
    [
        (ISOLATES, "parts"),
        (replace(ISOLATES, keeps_key=True), "DEFERRED"),
        (Terms(40, "defer"), "DEFERRED"),
        (Terms(40), "RAISED"),
        (Terms(1, "isolate"), "DEFERRED"),
    ],
)
def test_a_failure_that_says_nothing_of_the_sink_is_not_waited_for(terms: Terms, step: str) -> None:
    if terms.records == 1:
        life = a_life(terms)
        world = Memory(life, dead={0}, records=1)
        assert live(life, world).kind.name == step
    else:
        assert after(1, terms, Verdict.RECORDS) == step


def test_another_kind_of_failure_begins_a_hold_of_its_own() -> None:
    life = a_life(ISOLATES, Held(0, 50, 0, is_certain=True))
    pause = life.next(0, is_down=False)
    assert isinstance(pause, Pause)
    life.note_waited(pause, Waited.OVER)
    call = life.next(0, is_down=False)
    assert isinstance(call, Call)
    life.note(call, failure(Verdict.RECORDS))
    assert isinstance(life.next(0, is_down=False), Call)


@pytest.mark.parametrize("word", [OnOutage.DEFER, OnOutage.STOP])
def test_only_a_gate_that_is_to_hold_does(word: OnOutage) -> None:
    terms = replace(ISOLATES, outage=OutageSettings(word))
    assert after(1, terms) == ("RAISED" if word is OnOutage.STOP else "parts")


@pytest.mark.parametrize(("max_hold_ms", "step"), [(60_001, "wait"), (60_000, "RAISED")])
def test_a_hold_has_the_end_that_is_set(max_hold_ms: int, step: str) -> None:
    terms = Terms(40, outage=OutageSettings(max_hold_ms=max_hold_ms))
    assert after(5, terms) == step


@pytest.mark.parametrize("last", ["stop", "defer", "isolate"])
@pytest.mark.parametrize(
    ("verdict", "ends"),
    [
        (Verdict.WRONG, {"stop": "RAISED", "defer": "RAISED", "isolate": "RAISED"}),
        (Verdict.STOPPED, {"stop": "RAISED", "defer": "RAISED", "isolate": "RAISED"}),
        (Verdict.UNREAD, {"stop": "RAISED", "defer": "DEFERRED", "isolate": "DEFERRED"}),
        (Verdict.PARTLY_IN, {"stop": "RAISED", "defer": "parts", "isolate": "parts"}),
        (Verdict.TOO_LARGE, {"stop": "RAISED", "defer": "DEFERRED", "isolate": "parts"}),
    ],
)
def test_the_table_of_verdicts_holds(verdict: Verdict, ends: dict[str, str], last: str) -> None:
    assert after(1, Terms(40, last), verdict) == ends[last]


@pytest.mark.parametrize(("verdict", "retries"), [(Verdict.RECORDS, 2), (Verdict.TOO_LARGE, 0)])
def test_retries_come_first_but_where_the_batch_is_too_large(
    verdict: Verdict, retries: int
) -> None:
    life = a_life(replace(ISOLATES, retry_ms=(10, 20)))
    waits = list[int]()
    while isinstance(call := life.next(0, is_down=False), Call) and call.part == WHOLE:
        life.note(call, failure(verdict))
        while isinstance(pause := life.next(0, is_down=False), Pause):
            waits.append(pause.ms)
            life.note_waited(pause, Waited.OVER)
        if isinstance(pause, Call) and pause.part != WHOLE:
            break
    assert waits == [10, 20][:retries]


# Lives in memory.


@dataclass
class Memory:
    """A sink that knows its keys, and a row: what is durable of a batch survives a crash."""

    life: Life
    dead: set[int]
    records: int
    flaps: float = 0.0
    away_for: int = 0
    splits: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    kept: Counter[int] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    rejected: list[int] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    passes: int = 0
    is_down: bool = False
    crash_in: int = 10**9
    unknown: bool = False

    def offsets(self, part: str) -> list[int]:
        ranges = ranges_of([OffsetRange("t", 0, 0, self.records)], part)
        return [offset for r in ranges for offset in range(r.start, r.until)]

    def tick(self) -> None:
        self.crash_in -= 1
        if self.crash_in == 0:
            raise CrashError

    def call(self, call: Call) -> Failure | None:
        if call.part != WHOLE or call.before.running is not None:
            self.progress = call.before
            self.tick()
        offsets = self.offsets(call.part)
        if self.away_for > 0:
            self.away_for -= 1
            return failure(Verdict.AWAY, ConnectionRefusedError())
        if self.dice.random() < self.flaps:
            verdict = self.dice.choice([Verdict.RECORDS, Verdict.UNREAD, Verdict.TOO_LARGE])
            return failure(verdict)
        if call.part not in self.keys:  # the sink knows its keys, and takes none twice
            if not self.dead.isdisjoint(offsets):
                return failure(Verdict.RECORDS, ValueError(str(offsets[0])))
            self.keys.add(call.part)
            self.kept.update(offsets)
        self.tick()
        self.passes += 1
        return None

    def pause(self, pause: Pause, progress: Progress) -> Waited:
        del pause
        self.progress = progress
        self.tick()
        return Waited.OVER

    def await_other(self) -> bool | None:
        return self.dice.choice([True, True, True, None])

    def reject(self, reject: Reject) -> bool:
        self.rejected += self.offsets(reject.part)
        self.progress = reject.done
        self.tick()
        return True


class CrashError(Exception):
    """The process ends here."""


def a_batch(seed: int) -> None:
    """A batch, live and in backfills, with crashes, until it is resolved."""
    dice = random.Random(seed)
    records = dice.choice([1, 2, 7, 40, 200])
    dead = {dice.randrange(records) for _ in range(dice.choice([0, 0, 1, 2]))}
    terms = Terms(
        records,
        dice.choice(["defer", "isolate", "isolate"]),
        (1,) * dice.choice([0, 2]),
        budget=IsolationBudget(max_runs=dice.choice([5, 200])),
    )
    world: Memory | None = None
    unknown = False
    for turn in range(60):
        progress = Progress() if world is None else world.progress
        is_last = turn >= 50
        life = a_life(
            replace(
                terms,
                last="isolate" if is_last else terms.last,
                is_live=turn == 0,
                can_wait=turn > 0,
                is_final=is_last,
                unknown_failed=is_last,
                keeps_key=unknown and progress == Progress(),
                max_records=dice.choice([10**9, 3]) if not unknown and 0 < turn < 50 else 10**9,
            ),
            progress=progress,
            seed=dice.randrange(10**9),
        )
        if world is None:
            world = Memory(life, dead, records, dice=dice)
        world.life, world.is_down = life, False
        world.flaps = dice.choice([0.0, 0.05]) if not is_last else 0.0
        world.away_for = dice.choice([0, 0, 3, 30]) if not is_last else 0
        world.crash_in = dice.choice([1, 3, 9, 10**9]) if not is_last else 10**9
        try:
            end = live(life, world)
        except CrashError:
            unknown = unknown or world.progress == Progress()
            continue
        world.progress = life.progress
        assert end.kind is not Ending.RAISED
        if end.kind is Ending.SUCCESS:
            break
    else:
        pytest.fail("it is never resolved")
    assert set(world.rejected) <= dead
    fates = world.kept + Counter(world.rejected)
    assert fates == Counter(range(records)), seed


def test_each_offset_of_a_batch_is_in_its_sink_once_or_rejected() -> None:
    for seed in range(2_000):
        a_batch(seed)
