"""``headrace adopt``, ``restart``, ``checkpoint offsets``: what the next start of a query does."""

import json
from pathlib import Path

import pytest
from tests.gate.ledger.samples import a_batch
from typer.testing import CliRunner, Result

from headrace.errors import OptionError
from headrace.gate.control.limits import OperatorActionKind
from headrace.gate.ledger.ledger import Ledger
from headrace.operate.cli.app import app


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/headrace.db"
    with Ledger.open(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="{}")
    return url


def run(url: str, *arguments: str) -> Result:
    return CliRunner(env={"HEADRACE_LEDGER": url}).invoke(app, arguments)


def test_the_position_is_printed_as_starting_offsets(url: str) -> None:
    nowhere = run(url, "checkpoint", "offsets", "orders")
    assert isinstance(nowhere.exception, OptionError)
    assert "has begun no batch yet" in str(nowhere.exception)
    with Ledger.open(url) as ledger:
        ledger.batches.begin(a_batch())
    printed = run(url, "checkpoint", "offsets", "orders")
    assert json.loads(printed.output) == {"orders": {"0": 20}}
    unnamed = run(url, "checkpoint", "offsets")
    assert (unnamed.stdout, "Gate orders" in unnamed.stderr) == (printed.output, True)


def test_a_start_is_told_to_begin_anew_or_what_to_adopt(url: str) -> None:
    with Ledger.open(url) as ledger:
        ledger.batches.begin(a_batch())
        own = ledger.gates.all()[0].gate_id
    assert "begins by startingOffsets" in run(url, "restart", "orders", "--why", "anew").output
    for wrong in ("nonsense", own, "4f" * 16):
        refused = run(url, "adopt", "orders", wrong, "--why", "it was restored")
        assert isinstance(refused.exception, OptionError)
        assert f"{wrong!r} is neither a checkpoint of" in str(refused.exception)
    for right in ("run", "4f" * 8):
        assert right in run(url, "adopt", "orders", right, "--why", "it was restored").output
    with Ledger.open(url) as ledger:
        asked = ledger.operator_limits.for_the_start("orders")
    assert [(each.kind, each.target) for each in asked] == [
        (OperatorActionKind.RESTART, None),
        (OperatorActionKind.ADOPT, "run"),
        (OperatorActionKind.ADOPT, "4f" * 8),
    ]
