"""Scenarios in files, and what is wrong with them."""

from pathlib import Path

import pytest

from headrace.control import HopSettings
from headrace.errors import OptionError
from headrace.simulation import Load, Shape, Slow, read_scenario

SCENARIO = """
duration_s = 60
name = "shop"

[hop]
overload_bytes = 1_000_000

[[stage]]
name = "parse"
capacity_per_s = 1000
load = { points = [[0, 10], [5.5, 20]], shape = "lines", repeat_s = 9 }

[[stage]]
name = "store"
after = "parse"
capacity_per_s = 1000.5
hop = { step = 0.25 }

[[disturbance]]
kind = "slow"
stage = "store"
from_s = 10
until_s = 20
"""


def test_a_file_becomes_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    scenario = read_scenario(path)
    parse, store = scenario.stages
    assert (scenario.name, scenario.duration_s, scenario.signal_ms) == ("shop", 60, 100)
    assert parse.load == Load(((0, 10), (5.5, 20)), Shape.LINES, 9)
    assert parse.hop == HopSettings(overload_bytes=1_000_000)
    assert store.hop == HopSettings(overload_bytes=1_000_000, step=0.25)
    assert (store.after, store.capacity_per_s) == (("parse",), 1000.5)
    assert scenario.disturbances == (Slow("store", 10, 20),)


MISTAKES = {
    "duration_s = 60": [
        ("", "'duration_s' is missing in the file"),
        ("duration_s = 0", "duration_s is 0 s; it must be a finite number above 0"),
        ("duration_s = inf", "duration_s is inf s; it must be a finite number above 0"),
        (
            "duration_s = 1e300",
            "is 1e+300 s; it must be a finite number above 0 and at most 1e+06",
        ),
        ("duration_s = true", "duration_s in the file is True; it must"),
        ("duration = 60", "'duration' is no key of a scenario; the keys are name,"),
        ("duration_s = 60\nstages = []", "'stages' is no key of a scenario"),
        ("duration_s = ", "is not TOML: Invalid value"),
        ("duration_s = 60\nlook_ms = 1.5", "look_ms in the file is 1.5"),
    ],
    'name = "shop"': [('name = "a/b"', "the file: The flow's name is 'a/b'")],
    "overload_bytes = 1_000_000": [
        ("overload = 1", "'overload' in [hop] is no key; the"),
        ("step = nan", "[hop]: step is nan; it must"),
        ("overload_bytes = 9", "light load must be below"),
    ],
    "[hop]": [
        ("[estimator]\nproportional = 'x'\n[hop]", "proportional in [estimator] is 'x'"),
        ("[estimator]\nmin_rate = -1\n[hop]", "min_rate is -1; it must be a"),
        ("hop = 3\n[x]", "[hop] is 3; it must be a table"),
    ],
    "capacity_per_s = 1000\n": [
        ("", "'capacity_per_s' is missing in [[stage]] number 1"),
        ("capacity_per_s = 'x'\n", "in [[stage]] number 1 is 'x'"),
        ("capacity_per_s = -5\n", "of stage 'parse' is -5"),
    ],
    "[[0, 10], [5.5, 20]]": [
        ("[[1, 10]]", "The times of a load are [1] s; the first must be 0"),
        ("[[0, -1]]", "A rate of a load is -1 records/s"),
        ("[[0]]", "must be a list of pairs of a time (s) and a rate"),
    ],
    '"lines"': [('"waves"', "shape in load of [[stage]] number 1 is 'waves'; it must be one of")],
    "repeat_s = 9": [
        ("repeat_s = 5", "repeat_s is 5 s; it must be after the load's last point"),
        ("often = 5", "'often' in load of [[stage]] number 1 is no key"),
    ],
    'after = "parse"': [
        ('after = "pars"', "Stage 'store' is after 'pars', which is no stage"),
        ("after = 3", "after in [[stage]] number 2 is 3; it must be a list"),
        ("", "Stage 'store' reads no other stage and has no load"),
        ('after = "parse"\nload = 3', "has a load or a backlog and reads parse"),
        ('after = ["parse", "parse"]', "each may stand there once"),
        ('after = "store"', "The stages store -> store make a cycle"),
        ('after = "parse"\nnoise = 0.6', "must be a finite number of 0 or more and"),
        ('after = "parse"\npartitions = 10_000', "have 10001 partitions in all"),
    ],
    'name = "store"': [('name = "parse"', "Two stages are named 'parse'")],
    "step = 0.25": [("step = 1", "hop of [[stage]] number 2: step is 1")],
    'kind = "slow"': [
        ('kind = "late"', "kind in [[disturbance]] number 1 is 'late'; it"),
        ("", "kind in [[disturbance]] number 1 is None"),
        ('kind = "spike"', "A spike is at stage 'store', which has no load"),
    ],
    'stage = "store"': [('stage = "shop"', "is at stage 'shop', which is none; the stages are")],
    "until_s = 20": [
        ("until_s = 10", "until_s is 10 s; it must be after from_s, which is 10 s"),
        ("until_s = 'x'", "until_s in [[disturbance]] number 1 is 'x'"),
    ],
    "[[disturbance]]": [("[disturbance]", "'disturbance' is no list of tables; begin each with")],
}
"""By what stands in the scenario: what stands there instead, and what is said."""


@pytest.mark.parametrize(
    ("there", "instead", "message"),
    [(there, *each) for there, mistakes in MISTAKES.items() for each in mistakes],
)
def test_a_mistake_is_named_with_its_file_place_and_what_is_allowed(
    there: str, instead: str, message: str, tmp_path: Path
) -> None:
    assert there in SCENARIO
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO.replace(there, instead))
    with pytest.raises(OptionError) as told:
        read_scenario(path)
    assert message in str(told.value)
    assert str(path) in str(told.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        read_scenario(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe4'")
    with pytest.raises(OptionError, match="is not UTF-8"):
        read_scenario(tmp_path / "latin.toml")
    (tmp_path / "empty.toml").write_text("duration_s = 1")
    with pytest.raises(OptionError, match="There are 0 stages; there must be 1 to 1000"):
        read_scenario(tmp_path / "empty.toml")


def test_steps_stay_until_the_next_point_and_the_last_stays() -> None:
    load = Load(((0, 10), (2, 30), (5, 0)))
    assert [load.per_s(time_ms) for time_ms in (0, 1999, 2000, 4999, 5000, 10**9)] == [
        10, 10, 30, 30, 0, 0
    ]  # fmt: skip


def test_lines_lead_from_point_to_point() -> None:
    load = Load(((0, 10), (2, 30), (6, 0)), Shape.LINES)
    assert [load.per_s(time_ms) for time_ms in (0, 1000, 2000, 4000, 7000)] == [10, 20, 30, 15, 0]


def test_a_saw_begins_again() -> None:
    load = Load(((0, 0), (2, 20)), Shape.LINES, repeat_s=3)
    assert [load.per_s(1000 * second) for second in range(7)] == [0, 10, 20, 0, 10, 20, 0]
    assert load.per_s(2500) == pytest.approx(20)
