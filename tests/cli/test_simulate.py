"""The command that simulates, its page, and a gate's history as the load of a source."""

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.commands import run
from tests.cli.histories import NOW_MS, a_batch

from headrace.cli.simulate import load_of, with_history
from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError
from headrace.ledger import Ledger, PlannedBatch, PlannedRange
from headrace.simulation import Load, Scenario, SimulatedStage

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "simulation.md"
WORLDS = sorted((ROOT / "examples" / "worlds").glob("*.toml"))


def block(language: str) -> str:
    """The first block of that language on the page."""
    fenced = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return next(found[2] for found in fenced.finditer(PAGE.read_text()) if found[1] == language)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "five.toml").write_text(block("toml"))
    return tmp_path


def test_the_picture_has_a_panel_for_rates_queues_and_delays_of_each_policy(folder: Path) -> None:
    arguments = ["--policy", "none", "--policy", "sources", "--svg", "five.svg"]
    ended = run("simulate", "five.toml", *arguments, folder=folder)
    assert ended.returncode == 0
    picture = ElementTree.fromstring((folder / "five.svg").read_text())  # noqa: S314  (our own)
    name = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{name}polyline")) == 2 * 3 * (5 + 1), "the stages, and the axes"
    texts = [text.text for text in picture.findall(f"{name}text")]
    for title in ("admitted, records/s", "waiting, MB", "delay, s"):
        assert texts.count(title) == 2
    assert {"simulated: none, learned", "simulated: sources, learned"} <= set(texts)
    assert "http" not in (folder / "five.svg").read_text().replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.stem)
def test_the_gallery_has_what_the_command_draws(world: Path, tmp_path: Path) -> None:
    name = f"images/worlds/{world.stem}.svg"
    assert f"({name})" in PAGE.read_text()
    arguments = ["--law", "pid", "--law", "learned", "--svg", "world.svg"]
    assert run("simulate", str(world), *arguments, folder=tmp_path).returncode == 0
    drawn = (tmp_path / "world.svg").read_text()
    if os.environ.get("UPDATE_VIEWS"):
        (PAGE.parent / name).write_text(drawn)
    assert (PAGE.parent / name).read_text() == drawn, "UPDATE_VIEWS=1 draws them again"


def test_json_has_all_and_equal_seeds_are_equal(folder: Path) -> None:
    scenario = block("toml").replace(
        "duration_s = 480", "duration_s = 90\n[estimator]\nintegral = 0.1"
    )
    (folder / "noisy.toml").write_text(scenario.replace("fixed_ms = 50 ", "noise = 0.1 "))
    said = [
        run("simulate", "noisy.toml", "--json", "--seed", seed, folder=folder).stdout
        for seed in ("1", "1", "2")
    ]
    assert said[0] == said[1] != said[2]
    result = json.loads(said[0])
    assert set(result) == {
        "policy", "laws", "seed", "phases", "rate_limit_changes", "signals", "largest_bytes",
        "times_s", "series",
    }  # fmt: skip
    assert result["policy"] == "hop-by-hop"
    assert len(result["series"]["score"]["waiting_bytes"]) == len(result["times_s"]) == 91
    assert result["rate_limit_changes"][0]["stage"] == "enrich"


def test_both_laws_are_compared_side_by_side(folder: Path) -> None:
    ended = run("simulate", "five.toml", "--law", "pid", "--law", "learned", folder=folder)
    assert ended.returncode == 0
    rows = [line.split("│") for line in ended.stdout.partition("Side by side")[2].splitlines()]
    laws = [row[2].strip() for row in rows if len(row) > 2]
    assert laws == ["pid", "learned"] * 3
    said = run("simulate", "five.toml", "--law", "learned", "--json", folder=folder).stdout
    assert json.loads(said)["laws"] == ["learned"]


def test_of_many_stages_those_that_matter_are_shown(folder: Path) -> None:
    stages = "".join(
        f'[[stage]]\nname = "s{number}"\ncapacity_per_s = 1000\nload = {number}\n'
        for number in range(30)
    )
    (folder / "many.toml").write_text(f"duration_s = 10\n{stages}")
    ended = run("simulate", "many.toml", folder=folder)
    assert "and 10 others" in ended.stdout
    assert " s29 " in ended.stdout
    assert " s0 " not in ended.stdout


def test_a_mistake_is_told_in_one_sentence(folder: Path) -> None:
    (folder / "wrong.toml").write_text(block("toml").replace("factor = 0.25", "factor = 0"))
    ended = run("simulate", "wrong.toml", folder=folder)
    assert ended.returncode == 1
    assert ended.stderr == (
        "headrace: In wrong.toml: [[disturbance]] number 1: factor is 0 (a part); it must be a"
        " finite number above 0.\n"
    )


def test_a_picture_that_cannot_be_written_is_reported(folder: Path) -> None:
    ended = run("simulate", "five.toml", "--svg", "nowhere/five.svg", folder=folder)
    assert ended.returncode == 1
    assert "The picture nowhere/five.svg cannot be written: No such file" in ended.stderr


SCENARIO = Scenario(
    (
        SimulatedStage("ingest", 1000, load=Load(((0, 1),))),
        SimulatedStage("store", 1000, after=("ingest",)),
    ),
    duration_s=10,
)


def test_what_came_is_what_the_lag_grew_by_and_what_was_taken() -> None:
    batches = [
        a_batch(1, NOW_MS, lag=1_000, planned=1_000),
        a_batch(2, NOW_MS + 1_000, lag=500, planned=200),
        a_batch(3, NOW_MS + 3_000, lag=900, planned=900),
    ]
    assert load_of(batches) == Load(((0, 500), (1, 300)))


def test_offsets_that_were_lost_did_not_go_back() -> None:
    batches = [
        a_batch(1, NOW_MS, lag=1_000, planned=100),
        a_batch(2, NOW_MS + 1_000, lag=0, planned=0),
    ]
    assert load_of(batches) == Load(((0, 0),))


@pytest.mark.parametrize("choice", ["ingest", "ingest=", "store=orders", "=orders"])
def test_a_choice_that_is_none_is_told_with_the_sources(choice: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the sources are ingest"):
        with_history(SCENARIO, choice, f"sqlite:///{tmp_path}/headrace.db")


def begin(ledger: Ledger, start: int, until: int, lag: int) -> int:
    """Begin a batch; when it was planned."""
    planned = PlannedRange(
        OffsetRange("orders", 0, start, until), latest=start + lag, reason="rate"
    )
    begun = ledger.batches.begin(
        PlannedBatch("orders", "run", (planned,), "rate", "localhost:9092", lag=lag)
    )
    (batch,) = ledger.batches.newest("orders", 1)
    assert batch.batch_key == begun.batch_key
    return batch.created_time_ms


def test_the_history_of_a_gate_takes_the_place_of_a_source_s_load(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        first_ms = begin(ledger, 10, 30, lag=90)
        with pytest.raises(OptionError, match="it takes two batches of one run"):
            with_history(SCENARIO, "ingest=orders", url)
        second_ms = begin(ledger, 30, 60, lag=120)
    with pytest.raises(OptionError, match="has no gate 'order'"):
        with_history(SCENARIO, "ingest=order", url)
    scenario = with_history(SCENARIO, "ingest=orders", url)
    ingest, store = scenario.stages
    assert ingest.backlog == 90
    assert ingest.load is not None
    assert ingest.load.per_s(0) == pytest.approx(50_000 / (second_ms - first_ms))
    assert (store, scenario.duration_s) == (SCENARIO.stages[1], SCENARIO.duration_s)


def test_the_command_takes_it(tmp_path: Path, ledger_url: str) -> None:
    (tmp_path / "one.toml").write_text(
        'duration_s = 5\n[[stage]]\nname = "ingest"\nload = 1\ncapacity_per_s = 10\n'
    )
    arguments = ["--history", "ingest=orders", "--ledger", ledger_url]
    ended = run("simulate", "one.toml", *arguments, folder=tmp_path)
    assert ended.returncode == 1
    assert "The gate 'orders' in sqlite:///" in ended.stderr
