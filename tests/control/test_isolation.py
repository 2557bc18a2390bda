import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.examples import examples

from headrace.control.isolation import Isolated, Isolation, IsolationBudget, expected_runs
from headrace.control.likeness import kind_of
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

    def isolate(self, batch: Ranges, isolation: Isolation[Bad]) -> Isolated[Bad]:
        isolation.begin(batch, Bad("whole"))
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
        self.passes += not self.fails([(-1, 0)])


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
    query = Query(poisoned(bad), others=1_000)
    result = query.isolate(batch, Isolation(MANY, can_wait=True))
    assert all(r.count == 1 for r, _ in result.alone)
    assert alone(result) <= bad
    assert sorted([*query.processed, *alone(result), *left(result)]) == sorted(everything)
    if result.down is None:
        assert alone(result) == bad


@pytest.mark.integration
@pytest.mark.parametrize(("records", "bad"), [(7_131, 1), (100_000, 3), (1_000_000, 3)])
def test_the_runs_stay_near_what_is_expected(records: int, bad: int) -> None:
    where = {(0, int(records * (i + 0.37) / bad)) for i in range(bad)}
    result = Query(poisoned(where)).isolate(batch_of(records), Isolation(IsolationBudget()))
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
    result = query.isolate(batch, Isolation(IsolationBudget(max_runs=runs)))
    assert result.runs <= runs
    assert sorted([*query.processed, *left(result), *alone(result)]) == sorted(everything)


def test_time_ends_it_too() -> None:
    isolation: Isolation[Bad] = Isolation(IsolationBudget(max_time_ms=100))
    isolation.begin(batch_of(8), Bad("whole"))
    assert isinstance(isolation.next_step(99, 0), Cut)
    assert isinstance(isolation.next_step(99, 0), Run)
    assert isolation.next_step(100, 0) is None


def test_parts_that_were_not_run_any_more_are_run_before_they_are_halved() -> None:
    parts = [(OffsetRange("orders", 0, n, n + 2),) for n in (0, 2)]
    query = Query(poisoned({(0, 1)}))
    isolation: Isolation[Bad] = Isolation(MANY, [(part, Bad("whole")) for part in parts])
    query.go_on({*parts}, isolation)
    assert query.runs[0] == (offsets(parts[0]), True)
    assert sorted(query.processed) == [(0, 0), (0, 2), (0, 3)]


@pytest.mark.parametrize("records", [1, 2, 5, 13, 32, 7_131])
def test_a_sink_that_is_down_is_found_soon_and_nobody_is_convicted(records: int) -> None:
    query = Query(lambda _places: True)
    result = query.isolate(batch_of(records), Isolation(MANY))
    assert result.alone == []
    assert sorted(left(result)) == offsets(batch_of(records))
    assert result.runs <= (3 if records >= 32 else 12)
    assert (result.down is not None) == (records >= 5)


def test_each_round_has_its_control() -> None:
    bad = [(0, 40)]
    query = Query(poisoned({*bad}))
    result = query.isolate(batch_of(100), Isolation(MANY))
    assert alone(result) == {*bad}
    marks = [
        "F" if where == bad else "." for where, failed in query.runs if where == bad or not failed
    ]
    assert [len(each) for each in "".join(marks).split(".") if each] == [3, 4, 5, 6]
    assert marks[-1] == ".", "the last round has no control"


def test_a_record_alone_in_its_batch_is_convicted_when_others_pass_or_at_last() -> None:
    one = batch_of(1)
    query = Query(poisoned({(0, 0)}))
    assert alone(query.isolate(one, Isolation(MANY))) == set()
    assert len(query.runs) == 0, "nothing can prove that it is the record"
    assert alone(query.isolate(one, Isolation(MANY, can_wait=True))) == set()
    query.others = 100
    assert alone(query.isolate(one, Isolation(MANY, can_wait=True))) == {(0, 0)}
    assert query.others == 94
    assert alone(query.isolate(one, Isolation(MANY, final=True))) == {(0, 0)}


@pytest.mark.parametrize("period", range(2, 15))
@given(st.integers(1, 300), st.integers(0, 20), st.booleans())
@examples(30)
def test_a_handler_that_fails_at_every_nth_call_has_nobody_convicted(
    period: int, records: int, calls: int, others: bool
) -> None:
    def fails(_places: list[Place]) -> bool:
        nonlocal calls
        calls += 1
        return calls % period == 0

    query = Query(fails, others=1_000 * others)
    result = query.isolate(batch_of(records), Isolation(MANY, can_wait=others))
    assert result.alone == []


@given(
    st.integers(1, 200),
    st.sampled_from([0.05, 0.2, 0.5, 0.8]),
    st.sampled_from([1, 3, 10]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@examples(300)
def test_a_sink_that_comes_and_goes_has_nobody_convicted(
    records: int, down: float, dwell: int, others: bool, dice: random.Random
) -> None:
    """It is down for so much of the time; each state lasts for some runs on the average."""
    is_down = dice.random() < down

    def fails(_places: list[Place]) -> bool:
        nonlocal is_down
        if dice.random() < 1 / dwell:
            is_down = dice.random() < down
        return is_down

    query = Query(fails, others=100 * others)
    result = query.isolate(batch_of(records), Isolation(IsolationBudget(), can_wait=others))
    assert result.alone == []


@pytest.mark.parametrize("wrong", [{"max_runs": 0}, {"max_time_ms": 0}])
def test_a_budget_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=r"isolate's max_.* must be"):
        IsolationBudget(**wrong)


KNOWN = kind_of("Bad", "poisoned")
SINK = kind_of("Bad", "the sink is down")


class Suspecting(Query):
    """A query whose failures have kinds: a bad record's, or the sink's.

    Args:
        flaw: says whether the sink fails a run, whatever its records.
        alike: whether that looks like a bad record's failure.
    """

    def __init__(
        self,
        bad: set[Place],
        flaw: Callable[[], bool] = lambda: False,
        *,
        alike: bool = False,
        others: int = 0,
    ) -> None:
        super().__init__(poisoned(bad), others)
        self.flaw, self.alike = flaw, alike

    def run(self, part: Ranges) -> Bad | None:
        if self.flaw():
            self.runs.append((offsets(part), True))
            return Bad("poisoned" if self.alike else "the sink is down")
        return None if super().run(part) is None else Bad("poisoned")

    def suspect(self, batch: Ranges, accused: set[Place], **options: Any) -> Isolated[Bad]:
        isolation: Isolation[Bad] = Isolation(
            MANY, kind_of=lambda why: kind_of("Bad", str(why)), known={KNOWN}, **options
        )
        isolation.begin(batch, Bad("poisoned"), places_of(accused))
        return self.go_on({batch}, isolation)


def places_of(accused: set[Place]) -> list[OffsetRange]:
    return [OffsetRange("orders", where, at, at + 1) for where, at in sorted(accused)]


@given(ranges, st.data())
def test_accused_records_are_found_with_all_others_and_nobody_else_is(
    batch: Ranges, data: st.DataObject
) -> None:
    everything = offsets(batch)
    bad = data.draw(st.sets(st.sampled_from(everything), min_size=1))
    accused = data.draw(st.sets(st.sampled_from(everything)))
    query = Suspecting(bad, others=1_000)
    result = query.suspect(batch, accused, can_wait=True)
    assert alone(result) <= bad
    assert sorted([*query.processed, *alone(result), *left(result)]) == sorted(everything)
    if result.down is None:
        assert alone(result) == bad


@pytest.mark.parametrize("bad", [1, 5, 15])
def test_accused_records_take_four_runs_each(bad: int) -> None:
    where = {(0, 500 * i // bad) for i in range(bad)}
    result = Suspecting(where).suspect(batch_of(500), where)
    assert alone(result) == where
    assert result.runs <= 4 * bad + 2


def test_a_wrong_accusation_takes_two_runs() -> None:
    result = Suspecting({(0, 7)}).suspect(batch_of(500), {(0, 7), (0, 100), (0, 300)})
    assert alone(result) == {(0, 7)}
    assert result.runs <= 4 + 2 * 2 + 2


def test_an_accused_record_of_a_kind_that_is_not_known_is_proved_in_full() -> None:
    query = Query(poisoned({(0, 7)}))
    isolation: Isolation[Bad] = Isolation(MANY, kind_of=lambda why: SINK, known={KNOWN})
    isolation.begin(batch_of(500), Bad("whole"), places_of({(0, 7)}))
    assert alone(query.go_on({batch_of(500)}, isolation)) == {(0, 7)}
    assert sum(where == [(0, 7)] for where, _ in query.runs) == 18


def test_records_that_fail_as_one_that_was_convicted_in_full_take_fewer_runs() -> None:
    where = {(0, 100 * i + 37) for i in range(5)}
    query = Suspecting(where)
    assert alone(query.suspect(batch_of(500), set())) == where
    tries = sorted(sum(places == [each] for places, _ in query.runs) for each in where)
    assert tries == [7, 7, 7, 7, 18]


@given(st.sets(st.integers(0, 99), min_size=1, max_size=9), st.booleans())
def test_a_sink_that_is_down_has_no_accused_record_convicted(
    accused: set[int], alike: bool
) -> None:
    query = Suspecting(set(), lambda: True, alike=alike)
    result = query.suspect(batch_of(100), {(0, n) for n in accused})
    assert result.alone == []
    assert result.down is not None
    assert sorted(left(result)) == offsets(batch_of(100))


@given(
    st.sets(st.integers(0, 199), min_size=1, max_size=19),
    st.sets(st.integers(0, 199), max_size=5),
    st.sampled_from([0.05, 0.2, 0.5, 0.8]),
    st.randoms(use_true_random=False),
)
@examples(300)
def test_an_intermittent_sink_of_another_kind_has_no_good_record_convicted(
    accused: set[int], bad: set[int], fails: float, dice: random.Random
) -> None:
    query = Suspecting({(0, n) for n in bad}, lambda: dice.random() < fails)
    result = query.suspect(batch_of(200), {(0, n) for n in accused})
    assert alone(result) <= {(0, n) for n in bad}


@pytest.mark.parametrize("period", range(2, 15))
@given(st.integers(20, 300), st.integers(0, 20), st.data())
@examples(20)
def test_a_handler_that_fails_at_every_nth_call_convicts_no_accused_record(
    period: int, records: int, calls: int, data: st.DataObject
) -> None:
    def flaw() -> bool:
        nonlocal calls
        calls += 1
        return calls % period == 0

    accused = data.draw(st.sets(st.integers(0, records - 1), max_size=records // 10))
    query = Suspecting(set(), flaw, alike=True)
    assert query.suspect(batch_of(records), {(0, n) for n in accused}).alone == []


def test_even_a_sink_that_fails_alike_convicts_a_good_accused_record_with_its_probability() -> None:
    """At most p^3·(1-p)^2 for each; most runs notice that something fails without a cause."""
    dice, convicted, accused, tries = random.Random(7), 0, {(0, n) for n in range(0, 200, 20)}, 400
    for _ in range(tries):
        query = Suspecting(set(), lambda: dice.random() < 0.2, alike=True)
        convicted += len(query.suspect(batch_of(200), accused).alone)
    assert convicted <= 0.2**3 * 0.8**2 * tries * len(accused)


class Outage:
    """Fails these runs of a query, from the first on, in the words of a bad record."""

    def __init__(self, first: int, lasts: int) -> None:
        self.down = range(first, first + lasts)
        self.runs = -1

    def __call__(self) -> bool:
        self.runs += 1
        return self.runs in self.down


@given(st.integers(20, 300), st.integers(0, 60), st.integers(1, 60), st.data())
@examples(300)
def test_an_outage_convicts_no_good_record_though_it_looks_alike(
    records: int, first: int, lasts: int, data: st.DataObject
) -> None:
    places = st.integers(0, records - 1)
    accused = {(0, n) for n in data.draw(st.sets(places, max_size=records // 10))}
    bad = {(0, n) for n in data.draw(st.sets(places, max_size=3))}
    query = Suspecting(bad, Outage(first, lasts), alike=True)
    assert alone(query.suspect(batch_of(records), accused)) <= bad
