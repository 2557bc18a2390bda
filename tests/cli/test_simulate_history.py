"""What came to a gate as the load of a simulated source."""

from pathlib import Path

import pytest
from tests.cli.commands import run
from tests.cli.histories import NOW_MS, a_batch

from headrace.cli.simulate_history import load_of, with_history
from headrace.control import OffsetRange
from headrace.errors import OptionError
from headrace.ledger import Ledger, PlannedBatch, PlannedRange
from headrace.simulation import Load, SimulatedStage, World

WORLD = World(
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
        with_history(WORLD, choice, f"sqlite:///{tmp_path}/headrace.db")


def begin(ledger: Ledger, start: int, until: int, lag: int) -> int:
    """Begin a batch; when it was planned."""
    planned = PlannedRange(
        OffsetRange("orders", 0, start, until), latest=start + lag, reason="rate"
    )
    begun = ledger.begin(
        PlannedBatch("orders", "run", (planned,), "rate", "localhost:9092", lag=lag)
    )
    (batch,) = ledger.batches("orders", 1)
    assert batch.schedule_id == begun.schedule_id
    return batch.created_time_ms


def test_the_history_of_a_gate_takes_the_place_of_a_source_s_load(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.declare_gate("orders", interval_ms=1_000, source="kafka", estimator="pid")
        first_ms = begin(ledger, 10, 30, lag=90)
        with pytest.raises(OptionError, match="it takes two batches of one run"):
            with_history(WORLD, "ingest=orders", url)
        second_ms = begin(ledger, 30, 60, lag=120)
    with pytest.raises(OptionError, match="has no gate 'order'"):
        with_history(WORLD, "ingest=order", url)
    world = with_history(WORLD, "ingest=orders", url)
    ingest, store = world.stages
    assert ingest.backlog == 90
    assert ingest.load is not None
    assert ingest.load.per_s(0) == pytest.approx(50_000 / (second_ms - first_ms))
    assert (store, world.duration_s) == (WORLD.stages[1], WORLD.duration_s)


def test_the_command_takes_it(tmp_path: Path, ledger_url: str) -> None:
    (tmp_path / "one.toml").write_text(
        'duration_s = 5\n[[stage]]\nname = "ingest"\nload = 1\ncapacity_per_s = 10\n'
    )
    arguments = ["--history", "ingest=orders", "--ledger", ledger_url]
    ended = run("simulate", "one.toml", *arguments, folder=tmp_path)
    assert ended.returncode == 1
    assert "The gate 'orders' in sqlite:///" in ended.stderr
