"""``headrace flow``, as a user runs it; what it does with Spark is in tests/flow."""

import json
from pathlib import Path

import pytest
from tests.operate.cli.commands import run

SHOP = """
from tests.flow.flows import NOWHERE, nothing

from headrace.flow import Flow, kafka

orders = Flow("orders", ledger="sqlite:///headrace.db", checkpoints="checkpoints")
orders.channel("raw", kafka("raw", NOWHERE))
orders.channel("clean", kafka("clean", NOWHERE))
orders.stage("parse", reads="raw", writes="clean")(nothing)
orders.stage("store", reads="clean")(nothing)

broken = Flow("broken", ledger="sqlite:///headrace.db", checkpoints="checkpoints")
broken.stage("parse", reads="raw")(nothing)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.mark.integration
def test_a_flow_is_listed_and_nothing_is_made(folder: Path) -> None:
    shown = run("flow", "show", "shop:orders", folder=folder)
    assert shown.stderr == ""
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["stage", "reads", "writes"],
        ["parse", "raw", "clean"],
        ["store", "clean"],
        [],
        ["channel", "where"],
        ["raw", "the", "topic", "raw", "at", "nowhere:9092"],
        ["clean", "the", "topic", "clean", "at", "nowhere:9092"],
    ]
    assert not (folder / "headrace.db").exists()
    assert not (folder / "checkpoints").exists()


@pytest.mark.integration
def test_a_flow_is_described_as_json(folder: Path) -> None:
    shown = json.loads(run("flow", "show", "shop:orders", "--json", folder=folder).stdout)
    parse, store = shown["stages"]
    assert (parse["downstream"], store["upstream"]) == (["store"], ["parse"])
    assert (parse["gate"], parse["declared"]) == ("orders.parse", "shop.py:9")
    assert [each["where"] for each in shown["channels"]] == [
        "the topic raw at nowhere:9092",
        "the topic clean at nowhere:9092",
    ]
