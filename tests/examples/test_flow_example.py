"""The example of a flow, run by `headrace flow run` as in a terminal, and ended by Ctrl-C."""

import json
import os
from pathlib import Path

import pyarrow.dataset as pads
import pytest
from tests.cli.commands import in_a_terminal, press_ctrl_c
from tests.examples.test_examples import EXAMPLES
from tests.services.waiting import wait_until

from headrace.journal import Journal, Records
from headrace.ledger import Ledger, Status

pytestmark = pytest.mark.nightly

ORDERS = 400


def order(number: int) -> bytes:
    return json.dumps({"id": number, "amount": number % 4}).encode()  # one in four is free


def receive(folder: Path) -> None:
    """Write the orders that `headrace receive` would have taken in, and a record that is none."""
    with Journal.open(str(folder / "journals/raw"), create=True).writer(0) as writer:
        values = [order(number) for number in range(ORDERS)]
        writer.append(Records.of([*values, b"no order"], timestamp_ms=1))


def stored(folder: Path) -> list[bytes]:
    parts = [str(part) for part in folder.glob("orders/batch=*/*.parquet")]
    values = [pads.dataset(part).to_table(["value"]).column("value").to_pylist() for part in parts]
    return sorted(value for some in values for value in some)


def bad_ones(folder: Path) -> dict[int, tuple[int, int]]:
    """The lanes of the journal of what is no good order; none before it is made."""
    path = folder / "journals/bad"
    return Journal.open(str(path)).bounds() if (path / "journal.json").exists() else {}


def is_done(folder: Path, good: list[bytes]) -> bool:
    if stored(folder) != good or bad_ones(folder) != {0: (0, ORDERS // 4 + 1)}:
        return False
    with Ledger.open(f"sqlite:///{folder}/headrace.db", create=False) as ledger:
        return {batch.status for batch in ledger.batches.newest()} == {Status.SUCCESS}


def test_orders_go_through_two_stages_until_ctrl_c(tmp_path: Path) -> None:
    receive(tmp_path)
    good = sorted(order(number) for number in range(ORDERS) if number % 4)
    paths = os.pathsep.join([os.environ["PYTHONPATH"], str(EXAMPLES)])
    errors = tmp_path / "stderr"
    command = ("flow", "run", "flow_orders:flow")
    with in_a_terminal(*command, folder=tmp_path, variables={"PYTHONPATH": paths}) as running:
        wait_until(lambda: is_done(tmp_path, good) or running.poll() is not None, 150)
        press_ctrl_c(running)
        assert running.wait(60) == 0, errors.read_text()
    assert "\nThe flow stops; Ctrl-C once more ends it at once.\n" in errors.read_text()
    assert (tmp_path / "stdout").read_text() == "Flow orders runs: check, store. Ctrl-C ends it.\n"
    assert stored(tmp_path) == good
    with Ledger.open(f"sqlite:///{tmp_path}/headrace.db", create=False) as ledger:
        assert ledger.signals.published("orders") == ()
