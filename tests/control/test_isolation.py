import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.examples import examples

from headrace.control import isolation as law
from headrace.control.isolation import (
    MAX_TESTS,
    ORDERS,
    Isolated,
    Isolation,
    IsolationBudget,
    TrialSize,
    expected_runs,
)
from headrace.control.parts import AwaitControl, Cut, Ranges, Run, cut_after
from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError

ranges = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=5
).map(
    lambda rows: tuple(
        OffsetRange("orders", place, start, start + count)
        for place, (_, start, count) in enumerate(rows)
    )
)

MANY = IsolationBudget(max_runs=10_000)


def isolation_of(
    budget: IsolationBudget = MANY,
    not_run: Sequence[tuple[Ranges, "Bad"]] = (),
    *,
    seed: int = 1,
    can_wait: bool = False,
    final: bool = False,
) -> Isolation["Bad"]:
    shuffle = random.Random(seed).shuffle
    return Isolation(budget, not_run, shuffle=shuffle, can_wait=can_wait, final=final)


Place = tuple[int, int]


class Bad(Exception):  # noqa: N818  (the tests' own)
    """A record that cannot be processed."""


def offsets(parts: Ranges) -> list[Place]:
    return [(r.partition, offset) for r in parts for offset in range(r.start, r.until)]


def batch_of(records: int) -> Ranges:
    return (OffsetRange("orders", 0, 0, records),)


class Query:
    """Runs an isolation as a query would.

    Args:
        fails: whether a run on these records fails; it is called once for each run.
        others: how many runs of other batches pass while this one waits for one.
    """

    def __init__(self, fails: Callable[[list[Place]], bool], others: int = 0) -> None:
        self.fails = fails
        self.others = others
        self.passes = 0
        self.processed: list[Place] = []
        self.runs: list[tuple[list[Place], bool]] = []

    def isolate(
        self, batch: Ranges, isolation: Isolation[Bad], hints: Collection[Place] = ()
    ) -> Isolated[Bad]:
        ranges = [OffsetRange("orders", where, at, at + 1) for where, at in sorted(hints)]
        isolation.begin(batch, Bad("whole"), ranges)
        return self.go_on({batch}, isolation)

    def go_on(self, parts: set[Ranges], isolation: Isolation[Bad]) -> Isolated[Bad]:
        while (step := isolation.next_step(0, self.passes)) is not None:
            match step:
                case Cut(part, children):
                    parts.remove(part)
                    assert sorted(offsets(part)) == sorted(o for c in children for o in offsets(c))
                    parts |= {*children}
                case Run(part):
                    assert part in parts, "it is run before it was cut off"
                    isolation.record(part, self.run(part))
                case AwaitControl():
                    self.wait(isolation)
        return isolation.result

    def run(self, part: Ranges) -> Bad | None:
        failed = self.fails(offsets(part))
        self.runs.append((offsets(part), failed))
        if failed:
            return Bad(str(part))
        self.passes += 1
        self.processed += offsets(part)
        return None

    def wait(self, isolation: Isolation[Bad]) -> None:
        if self.others == 0:
            isolation.give_up_waiting()
            return
        self.others -= 1
        passed = not self.fails([(-1, 0)])
        self.passes += passed
        isolation.record_other(passed=passed)


def poisoned(bad: set[Place]) -> Callable[[list[Place]], bool]:
    return lambda places: not bad.isdisjoint(places)


def alone(result: Isolated[Bad]) -> set[Place]:
    return {(r.partition, r.start) for r, _ in result.alone}


def left(result: Isolated[Bad]) -> list[Place]:
    return [where for part, _ in result.left for where in offsets(part)]


@given(ranges, st.integers(0, 300))
def test_what_is_cut_is_the_whole_in_order(batch: Ranges, wanted: int) -> None:
    first, others = cut_after(batch, wanted)
    assert offsets(first) + offsets(others) == offsets(batch)
    assert len(offsets(first)) == min(wanted, len(offsets(batch)))


@given(ranges, st.data())
def test_only_bad_records_are_convicted_and_the_rest_is_processed_once(
    batch: Ranges, data: st.DataObject
) -> None:
    everything = offsets(batch)
    bad = data.draw(st.sets(st.sampled_from(everything), min_size=1))
    hints = data.draw(st.sets(st.sampled_from(everything), max_size=len(everything) // 10))
    query = Query(poisoned(bad), others=1_000)
    result = query.isolate(batch, isolation_of(can_wait=True), hints)
    assert all(r.count == 1 for r, _ in result.alone)
    assert alone(result) <= bad
    assert sorted([*query.processed, *alone(result), *left(result)]) == sorted(everything)
    if len(bad) == 1:
        assert alone(result) == bad


@pytest.mark.integration
@pytest.mark.parametrize(("records", "bad"), [(7_131, 1), (100_000, 3), (1_000_000, 3)])
def test_the_runs_stay_near_what_is_expected(records: int, bad: int) -> None:
    where = {(0, int(records * (i + 0.37) / bad)) for i in range(bad)}
    result = Query(poisoned(where)).isolate(batch_of(records), isolation_of(IsolationBudget()))
    assert alone(result) == where
    assert result.runs <= expected_runs(records, bad) + 3
    assert expected_runs(records, bad) <= bad * (2 * math.ceil(math.log2(records)) + 17) + 5


@given(ranges, st.integers(1, 20), st.data())
def test_what_the_budget_leaves_is_accounted_for(
    batch: Ranges, runs: int, data: st.DataObject
) -> None:
    everything = offsets(batch)
    bad = data.draw(st.sets(st.sampled_from(everything), min_size=1))
    query = Query(poisoned(bad))
    result = query.isolate(batch, isolation_of(IsolationBudget(max_runs=runs)))
    assert result.runs <= runs
    assert sorted([*query.processed, *left(result), *alone(result)]) == sorted(everything)


def test_time_ends_it_too() -> None:
    isolation = isolation_of(IsolationBudget(max_time_ms=100))
    isolation.begin(batch_of(8), Bad("whole"))
    assert isinstance(isolation.next_step(99, 0), Cut)
    assert isinstance(isolation.next_step(99, 0), Run)
    assert isolation.next_step(100, 0) is None


def test_parts_that_were_not_run_any_more_are_run_before_they_are_halved() -> None:
    parts = [(OffsetRange("orders", 0, n, n + 2),) for n in (0, 2)]
    query = Query(poisoned({(0, 1)}))
    isolation = isolation_of(MANY, [(part, Bad("whole")) for part in parts])
    query.go_on({*parts}, isolation)
    assert query.runs[0] == (offsets(parts[0]), True)
    assert sorted(query.processed) == [(0, 0), (0, 2), (0, 3)]


@pytest.mark.parametrize("records", [1, 2, 5, 13, 32, 7_131])
def test_a_sink_that_is_down_is_found_soon_and_nobody_is_convicted(records: int) -> None:
    query = Query(lambda _places: True)
    result = query.isolate(batch_of(records), isolation_of(MANY))
    assert result.alone == []
    assert sorted(left(result)) == offsets(batch_of(records))
    assert result.runs <= (3 if records >= 32 else 12)
    assert (result.down is not None) == (records >= 5)


def test_a_record_is_convicted_by_as_many_runs_of_it_and_of_other_single_records() -> None:
    bad = [(0, 40)]
    query = Query(poisoned({*bad}))
    result = query.isolate(batch_of(100), isolation_of())
    assert alone(result) == {*bad}
    test = query.runs[query.runs.index((bad, True)) + 1 :]
    singles = [(where, failed) for where, failed in test if len(where) == 1]
    tries = [failed for where, failed in singles if where == bad]
    controls = [where for where, failed in singles if not failed]
    assert len(tries) == 8
    assert len({where[0] for where in controls}) >= 8
    assert "".join("F" if where == bad else "." for where, _ in singles[:16]).strip(".F") == ""


@pytest.mark.parametrize("suspects", [1, 2, 5, 15, 40])
@given(st.integers(0, 30))
@examples(31)
def test_a_test_is_drawn_from_as_many_orders_whatever_its_size(
    suspects: int, controls: int
) -> None:
    size = TrialSize.for_suspects(suspects, controls)
    assert (size is None) == (controls < 4)
    if size is not None:
        assert size.controls <= controls
        assert math.comb(size.tries + size.controls, size.tries) >= ORDERS
        assert size.runs <= 8 * suspects + 8 or controls < 8


def test_suspects_of_a_batch_share_their_controls() -> None:
    bad = {(0, 500 * i // 15) for i in range(15)}
    query = Query(poisoned(bad))
    result = query.isolate(batch_of(500), isolation_of(seed=3))
    assert alone(result) == bad
    size = TrialSize.for_suspects(15)
    assert size is not None
    tries = [sum(where == [each] for where, _ in query.runs) for each in sorted(bad)]
    assert max(tries) <= 1 + MAX_TESTS * size.tries


@pytest.mark.parametrize("bad", [1, 5, 15])
def test_records_that_look_bad_are_found_without_halving(bad: int) -> None:
    where = {(0, 500 * i // bad) for i in range(bad)}
    result = Query(poisoned(where)).isolate(batch_of(500), isolation_of(), where)
    size = TrialSize.for_suspects(bad)
    assert size is not None
    assert alone(result) == where
    assert result.runs <= 2 * bad + size.runs + 4


def test_a_look_is_no_proof() -> None:
    """Good records that look bad, and a sink that is away whenever one of them is run."""
    hints, script = {(0, 7), (0, 300)}, [True, True, False, True, True]
    query = Query(lambda places: len(places) == 1 and bool(script) and script.pop(0))
    assert query.isolate(batch_of(500), isolation_of(), hints).alone == []
    assert {*query.processed} == {*offsets(batch_of(500))}


@pytest.mark.parametrize("limit", ["runs", "time"])
def test_what_is_found_is_tested_before_the_budget_ends(limit: str) -> None:
    bad = {(0, 500 * i // 20) for i in range(20)}
    query, budget = Query(poisoned(bad)), IsolationBudget(max_runs=100)
    isolation = isolation_of(budget if limit == "runs" else IsolationBudget(10_000, 1_000))
    isolation.begin(batch_of(500), Bad("whole"))
    while (
        step := isolation.next_step(10 * len(query.runs) * (limit == "time"), query.passes)
    ) is not None:
        if isinstance(step, Run):
            isolation.record(step.part, query.run(step.part))
    assert 1 <= len(alone(isolation.result)) <= 20
    assert alone(isolation.result) <= bad


def test_a_control_without_a_record_says_nothing() -> None:
    """The middle of the batch is a gap: runs over it end well, and call no sink."""
    query = Query(poisoned({(0, 299)}))
    isolation = isolation_of()
    isolation.begin(batch_of(300), Bad("whole"))
    empty = {(0, at) for at in range(290)}
    while (step := isolation.next_step(0, query.passes)) is not None:
        if isinstance(step, Run):
            passes = query.passes
            isolation.record(step.part, query.run(step.part))
            if {*offsets(step.part)} <= empty:
                query.passes = passes
    controls = [w for w, failed in query.runs if len(w) == 1 and not failed and w[0] not in empty]
    assert alone(isolation.result) == {(0, 299)}
    assert len(controls) >= 4


@pytest.mark.parametrize("records", [12, 20, 100, 300])
def test_gaps_alone_convict_nobody(records: int) -> None:
    query, isolation = Query(poisoned({(0, records - 1)})), isolation_of()
    isolation.begin(batch_of(records), Bad("whole"))
    while (step := isolation.next_step(0, 0)) is not None:
        if isinstance(step, Run):
            isolation.record(step.part, query.run(step.part))
    assert isolation.result.alone == []


def test_a_record_alone_in_its_batch_is_convicted_when_others_pass_or_at_last() -> None:
    one = batch_of(1)
    query = Query(poisoned({(0, 0)}))
    assert alone(query.isolate(one, isolation_of())) == set()
    assert len(query.runs) == 0, "nothing can prove that it is the record"
    assert alone(query.isolate(one, isolation_of(can_wait=True))) == set()
    query.others = 100
    assert alone(query.isolate(one, isolation_of(can_wait=True))) == {(0, 0)}
    assert query.others == 92
    assert alone(query.isolate(one, isolation_of(final=True))) == {(0, 0)}


Sink = Callable[[list[Place]], bool]


def by_chance(dice: random.Random) -> Sink:
    share = dice.choice([0.05, 0.2, 0.5, 0.8])
    return lambda _places: dice.random() < share


def by_period(dice: random.Random) -> Sink:
    period, down, calls = dice.randint(2, 14), dice.randint(1, 7), dice.randint(0, 20)

    def fails(_places: list[Place]) -> bool:
        nonlocal calls
        calls += 1
        return calls % period < down

    return fails


def by_time(dice: random.Random) -> Sink:
    """It is down for some of the time; each state lasts for some runs on the average."""
    down, dwell = dice.choice([0.05, 0.2, 0.5, 0.8]), dice.choice([1, 3, 10])
    is_down = dice.random() < down

    def fails(_places: list[Place]) -> bool:
        nonlocal is_down
        if dice.random() < 1 / dwell:
            is_down = dice.random() < down
        return is_down

    return fails


def by_size(dice: random.Random) -> Sink:
    least, most = dice.choice([1, 2, 5]), dice.choice([1, 3, 50])
    flaps = by_chance(dice)
    return lambda places: not least <= len(places) <= most or flaps(places)


def once(dice: random.Random) -> Sink:
    first, last, calls = dice.randint(0, 60), dice.randint(1, 60), -1

    def fails(_places: list[Place]) -> bool:
        nonlocal calls
        calls += 1
        return first <= calls < first + last

    return fails


SINKS = [by_chance, by_period, by_time, by_size, once]


def histories(sink: Callable[[random.Random], Sink], number: int) -> Iterator[tuple[int, int]]:
    """Suspects and convicts of isolations over a sink that does not look at records."""
    for seed in range(number):
        dice = random.Random(seed)
        query = Query(sink(dice), others=100 * dice.randint(0, 1))
        records = dice.choice([1, 13, 40, 200])
        isolation = isolation_of(seed=seed, can_wait=query.others > 0)
        hints = {(0, dice.randrange(records)) for _ in range(dice.choice([0, 0, 5]))}
        result = query.isolate(batch_of(records), isolation, hints if records > 50 else ())
        suspects = {where[0] for where, failed in query.runs if failed and len(where) == 1}
        assert sorted([*query.processed, *alone(result), *left(result)]) == sorted(
            offsets(batch_of(records))
        )
        yield len(suspects) or records == 1, len(result.alone)


@pytest.mark.parametrize("sink", SINKS)
def test_a_sink_that_does_not_look_at_records_has_nobody_convicted(
    sink: Callable[[random.Random], Sink],
) -> None:
    found = list(histories(sink, 200))
    assert sum(suspects for suspects, _ in found) > 20
    assert sum(convicts for _, convicts in found) == 0


@pytest.mark.parametrize("sink", SINKS)
def test_the_odds_are_those_of_the_orders(
    sink: Callable[[random.Random], Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tests that are drawn from 20 orders, chance is seen, and is not above its bound."""
    monkeypatch.setattr(law, "ORDERS", 20)
    found = list(histories(sink, 600))
    suspects = sum(suspects for suspects, _ in found)
    mean = suspects * MAX_TESTS / 20
    assert sum(convicts for _, convicts in found) <= mean


def test_a_fixed_order_would_convict(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the odds are tested with finds a law that draws no order."""
    monkeypatch.setattr(random.Random, "shuffle", lambda _self, _order: None)
    assert sum(convicts for _, convicts in histories(once, 600)) > 0


@pytest.mark.soak
@pytest.mark.parametrize("sink", SINKS)
def test_the_odds_over_many_histories(sink: Callable[[random.Random], Sink]) -> None:
    found = list(histories(sink, 100_000))
    suspects = sum(suspects for suspects, _ in found)
    mean = suspects * MAX_TESTS / ORDERS
    assert sum(convicts for _, convicts in found) <= mean + 3 * math.sqrt(mean) + 1


@pytest.mark.parametrize("wrong", [{"max_runs": 0}, {"max_time_ms": 0}])
def test_a_budget_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=r"isolate's max_.* must be"):
        IsolationBudget(**wrong)
