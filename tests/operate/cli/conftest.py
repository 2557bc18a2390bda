"""Ledgers for the commands: one gate that has had a batch, and one that has had all sorts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.operate.cli.outcomes import Shop
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.operate.cli import main


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    """The URL of a ledger with the gate ``orders``."""
    url = f"sqlite:///{tmp_path}/headrace.db"
    with new_ledger(url) as ledger:
        add_gate(ledger, "orders")
    return url


def add_gate(ledger: Ledger, name: str) -> None:
    ledger.gates.declare(name, interval_ms=1_000, source="kafka", estimator="pid")
    planned = PlannedRange(OffsetRange("orders", 0, 10, 30), latest=100, reason="rate")
    begun = ledger.batches.begin(
        PlannedBatch(name, "run", (planned,), "rate", "localhost:9092", lag=90)
    )
    ledger.batches.attach(begun.batch_key, 7)
    ledger.batches.succeed(begun.batch_key)


@pytest.fixture(scope="session")
def shop_template(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """The ledger of which each test has a copy."""
    return Shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def shop(shop_template: Shop, tmp_path: Path) -> Shop:
    """A ledger with batches of the gate ``orders`` that have come to every end."""
    return shop_template.copied_to(tmp_path)


Complain = Callable[..., str]


@pytest.fixture
def complain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complain:
    """``complain(url, *arguments)``: what a command says that cannot be carried out.

    That is one line, and the exit status is 1.
    """

    def complaint(url: str, *arguments: str) -> str:
        monkeypatch.setenv("HEADRACE_LEDGER", url)
        monkeypatch.setattr("sys.argv", ["headrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert (ended.value.code, said.out) == (1, "")
        assert said.err.startswith("headrace: ")
        assert said.err.count("\n") == 1
        return said.err

    return complaint
