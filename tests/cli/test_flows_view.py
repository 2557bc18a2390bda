"""Flows in ``headrace status``."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.flow.samples import state_of_stage
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.flow.culprit import culprits
from headrace.flow.wire import text_of
from headrace.ledger import Ledger

runner = CliRunner(env={"COLUMNS": "100"})


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger in which three stages show themselves: b holds a back, and c holds b back."""
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.declare_gate("clicks.a", interval_ms=1000, source="journal", estimator="{}")
        for stage, held_by in [("a", "b"), ("b", "c"), ("c", None)]:
            state = state_of_stage(stage, held_by, queue_bytes=1_250_000)
            ledger.show_stage("clicks", stage, text_of(state))
    return url


def test_each_stage_is_shown_and_the_culprit_is_named(url: str) -> None:
    shown = runner.invoke(app, ["status", "--ledger", url]).output
    assert shown.count("throttled") >= 2
    assert "1.2 MB" in shown
    assert "Look at stage c of flow clicks: it throttles the others." in shown
    assert "Look at stage b" not in shown


def test_a_stage_is_shown_to_be_without_the_one_before_it_that_does_not_run(url: str) -> None:
    with Ledger.open(url) as ledger:
        alone = replace(state_of_stage("d"), without="c2")
        ledger.show_stage("clicks", "d", text_of(alone))
    shown = runner.invoke(app, ["status", "--ledger", url], env={"COLUMNS": "120"}).output
    assert "Nothing comes to stage d of flow clicks from stage c2, which does not run." in shown
    lines = runner.invoke(app, ["status", "--ledger", url, "--json"]).output.splitlines()
    assert [json.loads(each)["without"] for each in lines[1:]] == [None, None, None, "c2"]


def test_who_does_not_run_is_not_to_blame() -> None:
    assert culprits([state_of_stage("a", "b"), state_of_stage("c")]) == []


def test_stages_follow_the_gates_as_json(url: str) -> None:
    lines = runner.invoke(app, ["status", "--ledger", url, "--json"]).output.splitlines()
    gate, *stages = map(json.loads, lines)
    assert gate["gate"] == "clicks.a"
    assert [(each["stage"], each["state"], each["throttled_by"]) for each in stages] == [
        ("a", "throttled", "b"),
        ("b", "throttled", "c"),
        ("c", "bottleneck", None),
    ]
    assert stages[0]["rate_limit_per_s"] == 250.5


def test_one_gate_is_shown_without_flows(url: str) -> None:
    shown = runner.invoke(app, ["status", "--ledger", url, "--gate", "clicks.a"]).output
    assert "Look at stage" not in shown


def test_what_is_no_state_is_not_shown(url: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.show_stage("clicks", "forged", '{"stage": "forged"}')
    assert "forged" not in runner.invoke(app, ["status", "--ledger", url]).output


def test_nobody_is_to_blame_where_nobody_is_held_back() -> None:
    assert culprits([state_of_stage("a"), state_of_stage("b")]) == []
    assert culprits([]) == []


def test_every_stage_at_the_end_of_a_row_of_held_ones_is_to_blame() -> None:
    states = [
        state_of_stage("a", "b"),
        state_of_stage("b", "c"),
        state_of_stage("c"),
        state_of_stage("d", "e"),
        state_of_stage("e"),
    ]
    assert culprits(states) == ["c", "e"]
