import math
import random
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.examples import examples

from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError
from headrace.gate.control import bisection as law
from headrace.gate.control.bisection import (
    MAX_TESTS,
    ORDERS,
    WAITING_CONTROLS,
    AwaitControl,
    Bisection,
    Isolated,
    IsolationBudget,
    Run,
    TrialSize,
    proves,
)
from headrace.gate.control.parts import ranges_of

sizes = st.integers(1, 200)

MANY = IsolationBudget(max_runs=10_000)


def isolation_of(
    records: int,
    budget: IsolationBudget = MANY,
    not_run: Sequence[tuple[str, "Bad"]] = (),
    *,
    seed: int = 1,
    can_wait: bool = False,
    final: bool = False,
    max_records: int = sys.maxsize,
    evidence: str = "",
) -> Bisection["Bad"]:
    shuffle = random.Random(seed).shuffle
    return Bisection(
        records,
        budget,
        not_run,
        shuffle=shuffle,
        can_wait=can_wait,
        final=final,
        evidence=evidence,
        max_records=max_records,
    )


class Bad(Exception):  # noqa: N818  (the tests' own)
    """A record that cannot be processed."""


class Query:
    """Runs an isolation as a query would.

    Args:
        records: offsets of the batch.
        fails: whether a run on these records fails; it is called once for each run.
        others: how many runs of other batches pass while this one waits for one.
    """

    def __init__(self, records: int, fails: Callable[[list[int]], bool], others: int = 0) -> None:
        self.batch = [OffsetRange("orders", 0, 0, records)]
        self.fails = fails
        self.others = others
        self.passes = 0
        self.processed: list[int] = []
        self.runs: list[tuple[list[int], bool]] = []

    def offsets(self, part: str) -> list[int]:
        return [at for r in ranges_of(self.batch, part) for at in range(r.start, r.until)]

    def isolate(self, isolation: Bisection[Bad] | None = None) -> Isolated[Bad]:
        isolation = isolation or isolation_of(self.batch[0].count)
        isolation.begin(Bad("whole"))
        return self.go_on(isolation)

    def go_on(self, isolation: Bisection[Bad]) -> Isolated[Bad]:
        while (step := isolation.next_step(0, self.passes)) is not None:
            match step:
                case Run(part):
                    isolation.record(part, self.run(part))
                case AwaitControl():
                    self.wait(isolation)
        return isolation.result

    def run(self, part: str) -> Bad | None:
        failed = self.fails(self.offsets(part))
        self.runs.append((self.offsets(part), failed))
        if failed:
            return Bad(str(part))
        self.passes += 1
        self.processed += self.offsets(part)
        return None

    def wait(self, isolation: Bisection[Bad]) -> None:
        if self.others == 0:
            isolation.give_up_waiting()
            return
        self.others -= 1
        passed = not self.fails([-1])
        self.passes += passed
        isolation.record_other(passed=passed)

    def alone(self, result: Isolated[Bad]) -> set[int]:
        assert all(len(self.offsets(part)) == 1 for part, _ in result.alone)
        return {at for part, _ in result.alone for at in self.offsets(part)}

    def left(self, result: Isolated[Bad]) -> list[int]:
        return [at for part, _ in result.left for at in self.offsets(part)]

    def assert_accounted(self, result: Isolated[Bad]) -> None:
        outcomes = [*self.processed, *self.alone(result), *self.left(result)]
        assert sorted(outcomes) == [*range(self.batch[0].count)]


def poisoned(bad: Collection[int]) -> Callable[[list[int]], bool]:
    return lambda places: not {*bad}.isdisjoint(places)


@given(sizes, st.data())
def test_only_bad_records_are_convicted_and_the_rest_is_processed_once(
    records: int, data: st.DataObject
) -> None:
    everything = st.sampled_from(range(records))
    bad = data.draw(st.sets(everything, min_size=1))
    query = Query(records, poisoned(bad), others=1_000)
    result = query.isolate(isolation_of(records, can_wait=True))
    assert query.alone(result) <= bad
    query.assert_accounted(result)
    if len(bad) == 1:
        assert query.alone(result) == bad


@pytest.mark.integration
@pytest.mark.parametrize(
    ("records", "bad", "runs"), [(500, 1, 40), (7_131, 1, 54), (100_000, 3, 140), (10**6, 3, 165)]
)
def test_a_record_is_reached_by_halving(records: int, bad: int, runs: int) -> None:
    where = {int(records * (i + 0.37) / bad) for i in range(bad)}
    query = Query(records, poisoned(where))
    result = query.isolate(isolation_of(records, IsolationBudget()))
    assert query.alone(result) == where
    assert result.runs <= runs


@given(sizes, st.integers(1, 20), st.data())
def test_what_the_budget_leaves_is_accounted_for(
    records: int, runs: int, data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.sampled_from(range(records)), min_size=1))
    query = Query(records, poisoned(bad))
    result = query.isolate(isolation_of(records, IsolationBudget(max_runs=runs)))
    assert result.runs <= runs
    query.assert_accounted(result)


@given(sizes, st.integers(1, 60))
def test_a_backfill_runs_no_more_records_than_it_may(records: int, most: int) -> None:
    query = Query(records, lambda _places: False)
    whole = [("", Bad("whole"))]
    result = query.go_on(isolation_of(records, not_run=whole, max_records=most))
    assert min(most, records) // 2 < len(query.processed) <= most
    query.assert_accounted(result)


def test_time_ends_it_too() -> None:
    isolation = isolation_of(8, IsolationBudget(max_time_ms=100))
    isolation.begin(Bad("whole"))
    assert isinstance(isolation.next_step(99, 0), Run)
    assert isolation.next_step(100, 0) is None


def test_parts_that_were_not_run_any_more_are_run_before_they_are_halved() -> None:
    query = Query(4, poisoned({1}))
    query.go_on(isolation_of(4, MANY, [(part, Bad("whole")) for part in ("0", "1")]))
    assert query.runs[0] == ([0, 1], True)
    assert sorted(query.processed) == [0, 2, 3]


@pytest.mark.parametrize("records", [1, 2, 5, 13, 32, 7_131])
def test_a_sink_that_is_down_is_found_soon_and_nobody_is_convicted(records: int) -> None:
    query = Query(records, lambda _places: True)
    result = query.isolate()
    assert result.alone == []
    query.assert_accounted(result)
    assert result.runs <= (3 if records >= 32 else 12)
    assert (result.down is not None) == (records >= 5)


def test_a_record_is_convicted_by_as_many_runs_of_it_and_of_other_single_records() -> None:
    query = Query(100, poisoned([40]))
    result = query.isolate()
    assert query.alone(result) == {40}
    test = query.runs[query.runs.index(([40], True)) + 1 :]
    singles = [(where, failed) for where, failed in test if len(where) == 1]
    tries = [failed for where, failed in singles if where == [40]]
    controls = [where for where, failed in singles if not failed]
    assert len(tries) == 8
    assert len({where[0] for where in controls}) >= 8
    assert "".join("F" if where == [40] else "." for where, _ in singles[:16]).strip(".F") == ""


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
    bad = {500 * i // 15 for i in range(15)}
    query = Query(500, poisoned(bad))
    assert query.alone(query.isolate(isolation_of(500, seed=3))) == bad
    size = TrialSize.for_suspects(15)
    assert size is not None
    tries = [sum(where == [at] for where, _ in query.runs) for at in sorted(bad)]
    assert max(tries) <= 1 + MAX_TESTS * size.tries


@pytest.mark.parametrize("limit", ["runs", "time"])
def test_what_is_found_is_tested_before_the_budget_ends(limit: str) -> None:
    bad = {500 * i // 8 for i in range(8)}
    query, budget = Query(500, poisoned(bad)), IsolationBudget(max_runs=120)
    isolation = isolation_of(500, budget if limit == "runs" else IsolationBudget(10_000, 1_200))
    isolation.begin(Bad("whole"))
    while (
        step := isolation.next_step(10 * len(query.runs) * (limit == "time"), query.passes)
    ) is not None:
        if isinstance(step, Run):
            isolation.record(step.part, query.run(step.part))
    assert 1 <= len(query.alone(isolation.result)) <= 8
    assert query.alone(isolation.result) <= bad


def test_a_control_without_a_record_says_nothing() -> None:
    """Most of the batch is a gap: runs over it end well, and call no sink."""
    query, isolation = Query(300, poisoned({299})), isolation_of(300)
    isolation.begin(Bad("whole"))
    empty = {*range(290)}
    while (step := isolation.next_step(0, query.passes)) is not None:
        if isinstance(step, Run):
            passes = query.passes
            isolation.record(step.part, query.run(step.part))
            if {*query.offsets(step.part)} <= empty:
                query.passes = passes
    controls = [w for w, failed in query.runs if len(w) == 1 and not failed and w[0] not in empty]
    assert query.alone(isolation.result) == {299}
    assert len(controls) >= 4


@pytest.mark.parametrize("records", [12, 20, 100, 300])
def test_gaps_alone_convict_nobody(records: int) -> None:
    query, isolation = Query(records, poisoned({records - 1})), isolation_of(records)
    isolation.begin(Bad("whole"))
    while (step := isolation.next_step(0, 0)) is not None:
        if isinstance(step, Run):
            isolation.record(step.part, query.run(step.part))
    assert isolation.result.alone == []


@pytest.mark.parametrize("others_at_once", [1, 7, 18])
def test_a_test_with_the_streams_records_goes_on_where_the_last_isolation_left_it(
    others_at_once: int,
) -> None:
    """One in five of them is bad as well; each isolation finds only some."""
    dice, evidence, isolations = random.Random(3), "", 0
    result = Isolated[Bad]()
    while not result.alone:
        query = Query(1, lambda places: places == [0] or dice.random() < 0.2, others_at_once)
        isolation = isolation_of(1, can_wait=True, evidence=evidence)
        result = query.isolate(isolation)
        evidence, isolations = isolation.evidence, isolations + 1
        assert isolations < 60
    assert evidence == ""
    assert isolations >= WAITING_CONTROLS // others_at_once


def test_a_suspect_that_passes_once_is_free_whatever_the_evidence_was() -> None:
    query = Query(1, poisoned({0}), others=5)
    first = isolation_of(1, can_wait=True)
    query.isolate(first)
    assert first.evidence != ""
    again = Bisection[Bad](
        1,
        IsolationBudget(),
        [("", Bad("before"))],
        shuffle=random.shuffle,
        can_wait=True,
        evidence=first.evidence,
    )
    query.fails = poisoned(())
    assert query.go_on(again).is_whole


@pytest.mark.parametrize(
    "evidence",
    ["{}", "[]", "[[],[],0]", '[["0"],["1"],0]', '[["0"],["0"],6]', '[["0"],[],true]', "[" * 9_000],
)
def test_what_is_no_evidence_begins_a_test_anew(evidence: str) -> None:
    query = Query(1, poisoned({0}), others=17)
    isolation = isolation_of(1, can_wait=True, evidence=evidence)
    assert query.isolate(isolation).alone == []
    assert query.others == 0


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_the_odds_of_a_test_are_those_of_all_orders(
    tries: int, controls: int, data: st.DataObject
) -> None:
    """Whatever fails at which moment, so many orders give each failure of the suspect's to it."""
    moments = tries + controls
    fails = data.draw(st.sets(st.integers(0, moments - 1), min_size=tries))
    convicting = sum(fails.issuperset(order) for order in combinations(range(moments), tries))
    odds = Fraction(convicting, math.comb(moments, tries))
    failed = len(fails) - tries
    assert proves(tries, controls, failed) == (odds <= Fraction(1, ORDERS))


def test_a_record_alone_in_its_batch_is_convicted_when_others_pass_or_at_last() -> None:
    query = Query(1, poisoned({0}))
    assert query.isolate().alone == []
    assert len(query.runs) == 0, "nothing can prove that it is the record"
    assert query.isolate(isolation_of(1, can_wait=True)).alone == []
    query.others = 100
    assert query.alone(query.isolate(isolation_of(1, can_wait=True))) == {0}
    assert query.others == 82
    assert query.alone(query.isolate(isolation_of(1, final=True))) == {0}


Sink = Callable[[list[int]], bool]


def by_chance(dice: random.Random) -> Sink:
    share = dice.choice([0.05, 0.2, 0.5, 0.8])
    return lambda _places: dice.random() < share


def by_period(dice: random.Random) -> Sink:
    period, down, calls = dice.randint(2, 14), dice.randint(1, 7), dice.randint(0, 20)

    def fails(_places: list[int]) -> bool:
        nonlocal calls
        calls += 1
        return calls % period < down

    return fails


def by_time(dice: random.Random) -> Sink:
    """It is down for some of the time; each state lasts for some runs on the average."""
    down, dwell = dice.choice([0.05, 0.2, 0.5, 0.8]), dice.choice([1, 3, 10])
    is_down = dice.random() < down

    def fails(_places: list[int]) -> bool:
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

    def fails(_places: list[int]) -> bool:
        nonlocal calls
        calls += 1
        return first <= calls < first + last

    return fails


SINKS = [by_chance, by_period, by_time, by_size, once]


def histories(sink: Callable[[random.Random], Sink], number: int) -> Iterator[tuple[int, int]]:
    """Suspects and convicts of isolations over a sink that does not look at records."""
    for seed in range(number):
        dice = random.Random(seed)
        records = dice.choice([1, 13, 40, 200])
        query = Query(records, sink(dice), others=100 * dice.randint(0, 1))
        isolation = isolation_of(records, seed=seed, can_wait=query.others > 0)
        result = query.isolate(isolation)
        suspects = {where[0] for where, failed in query.runs if failed and len(where) == 1}
        query.assert_accounted(result)
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
