"""The registry of rate laws: what holds for any law, and that nothing else knows one by name."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import headrace
from headrace.errors import OptionError
from headrace.gate.control.law import (
    NO_TERMS,
    BatchProgress,
    FinishedPart,
    Law,
    LawOption,
    LawTerms,
    Options,
)
from headrace.gate.control.laws import (
    DEFAULT_LAW,
    LAWS,
    EstimatorSettings,
    law_options,
    rate_after_outage,
)
from headrace.gate.control.rates import QueryRates

SOURCE = Path(headrace.__file__).parent
RATE = "backpressure.constant.rate"


class _Constant:
    """A third law: always the rate of its option; it notes the rates that were in force."""

    seen: list[float | None]

    def __init__(self, options: Options, _min_rate: float, _interval_ms: int) -> None:
        self._rate_per_s = options[RATE]

    def batch(self, part: FinishedPart, rate_in_force: float | None) -> float | None:
        self.seen.append(rate_in_force)
        return self._rate_per_s if part.progress.records else None

    def terms(self) -> LawTerms:
        return NO_TERMS


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> Law:
    _Constant.seen = []
    law = Law("constant", _Constant, options=(LawOption(RATE, 70.0, above_zero=True),))
    monkeypatch.setitem(cast("dict[str, Law]", LAWS), law.name, law)
    return law


def finished(settings: EstimatorSettings, batches: int) -> list[float | None]:
    rates, found = QueryRates(), []
    rates.add("orders", settings, 1_000, rate_per_s=5.0)
    for number in range(batches):
        part = BatchProgress(number * 1_000, 1_000, 600, 1)
        found.append(rates.finished({"orders": part})["orders"].rate_per_s)
    return found


def test_a_third_law_learns_by_itself_and_knows_the_rate_in_force(third: Law) -> None:
    assert finished(EstimatorSettings(third.name), 3) == [70.0] * 3
    assert _Constant.seen == [5.0, 70.0, 70.0]


def test_a_law_is_told_of_an_outage_and_of_the_rate_after_it(third: Law) -> None:
    rates = QueryRates()
    rates.add("orders", EstimatorSettings(third.name), 1_000)
    usual = BatchProgress(0, 1_000, 600, 1)
    away = replace(usual, went_through=False, had_no_sink=True, rate_after_outage=35.0)
    for part in (usual, away, usual):
        rates.finished({"orders": part})
    assert _Constant.seen == [None, 35.0]


def test_a_law_decides_the_rate_after_an_outage(
    third: Law, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rate_after_outage(EstimatorSettings(third.name).to_text(), 90.0) == 45.0
    assert rate_after_outage("of another version", 90.0) == 45.0
    steady = replace(third, after_outage=lambda rate_in_force: rate_in_force)
    monkeypatch.setitem(cast("dict[str, Law]", LAWS), third.name, steady)
    assert rate_after_outage(EstimatorSettings(third.name).to_text(), 90.0) == 90.0


def test_what_a_batch_costs_is_learnt_under_every_law(third: Law) -> None:
    for name in LAWS:
        rates = QueryRates()
        rates.add("orders", EstimatorSettings(name), 1_000)
        learnt = None
        for number, records in enumerate((100, 800, 6_400)):
            part = BatchProgress(number * 1_000, 300 + records // 20, records, 1)
            learnt = rates.finished({"orders": part})["orders"]
        assert learnt is not None, name
        assert learnt.cost is not None, name


def every_option() -> Iterator[tuple[str, str]]:
    return ((law.name, option.name) for law in LAWS.values() for option in law.options)


@pytest.mark.parametrize(("owner", "option"), list(every_option()))
def test_an_option_of_another_law_is_refused(owner: str, option: str, third: Law) -> None:
    for name in LAWS:
        if name == owner:
            assert law_options(name, {option: "2"}) == {option: 2.0}
            continue
        with pytest.raises(OptionError, match=f"'2', an option of the law {owner}, but"):
            law_options(name, {option: "2"})
    with pytest.raises(OptionError, match=f"'2', an option of the law {third.name}, but"):
        law_options(owner, {RATE: "2"})


def test_the_options_of_a_law_come_back_from_their_text(third: Law) -> None:
    options: Mapping[str, float] = law_options(third.name, {RATE: "12.5"})
    settings = EstimatorSettings(third.name, options)
    assert EstimatorSettings.from_text(settings.to_text()) == settings
    assert finished(settings, 1) == [12.5]
    assert EstimatorSettings(third.name) == EstimatorSettings(third.name, {RATE: 70.0})


@pytest.mark.parametrize("options", [{RATE: 1.0}, {"backpressure.pid.gain": 1.0}])
def test_an_option_that_a_law_does_not_have_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="; remove"):
        EstimatorSettings(DEFAULT_LAW, options)


def test_no_other_module_names_a_law() -> None:
    own = {SOURCE / "gate/control" / f"{name}.py" for name in LAWS}
    named = [
        (path.relative_to(SOURCE), node.lineno)
        for path in sorted(SOURCE.rglob("*.py"))
        if path not in own
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in LAWS
    ]
    assert named == []
