"""The example of a flow, run by `headrace flow run` as in a terminal, and ended by Ctrl-C."""

import json
import os
from pathlib import Path

import pyarrow.dataset as pads
import pytest
from confluent_kafka.admin import NewTopic
from tests.examples.test_examples import EXAMPLES
from tests.operate.cli.commands import in_a_terminal, press_ctrl_c
from tests.services.kafka import Topic, Topics, leaders, records_in
from tests.services.waiting import wait_until

from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

pytestmark = pytest.mark.nightly

ORDERS = 400


def order(number: int) -> bytes:
    return json.dumps({"id": number, "amount": number % 4}).encode()  # one in four is free


def made(topics: Topics, name: str) -> Topic:
    """Make a topic of the example."""
    topics.admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    wait_until(lambda: leaders(topics.admin, name) == 1)
    return Topic(name, 1, topics.bootstrap_servers, topics.producer)


def stored(folder: Path) -> list[bytes]:
    parts = [str(part) for part in folder.glob("orders/batch=*/*.parquet")]
    values = [pads.dataset(part).to_table(["value"]).column("value").to_pylist() for part in parts]
    return sorted(value for some in values for value in some)


def is_done(folder: Path, good: list[bytes], bad: Topic) -> bool:
    if stored(folder) != good or len(records_in(bad)) != ORDERS // 4 + 1:
        return False
    with Ledger.open(f"sqlite:///{folder}/headrace.db", create=False) as ledger:
        return {batch.status for batch in ledger.batches.newest()} == {Status.SUCCESS}


def test_orders_go_through_two_stages_until_ctrl_c(topics: Topics, tmp_path: Path) -> None:
    raw, _, bad = (made(topics, f"orders.{name}") for name in ("raw", "good", "bad"))
    raw.produce(*map(order, range(ORDERS)), b"no order")
    good = sorted(order(number) for number in range(ORDERS) if number % 4)
    paths = os.pathsep.join([os.environ["PYTHONPATH"], str(EXAMPLES)])
    errors = tmp_path / "stderr"
    command = ("flow", "run", "flow_orders:flow")
    variables = {"PYTHONPATH": paths, "KAFKA": topics.bootstrap_servers}
    with in_a_terminal(*command, folder=tmp_path, variables=variables) as running:
        wait_until(lambda: is_done(tmp_path, good, bad) or running.poll() is not None, 150)
        press_ctrl_c(running)
        assert running.wait(60) == 0, errors.read_text()
    assert "\nThe flow stops; Ctrl-C once more ends it at once.\n" in errors.read_text()
    assert (tmp_path / "stdout").read_text() == "Flow orders runs: check, store. Ctrl-C ends it.\n"
    assert stored(tmp_path) == good
    with Ledger.open(f"sqlite:///{tmp_path}/headrace.db", create=False) as ledger:
        assert ledger.signals.published("orders") == ()
