"""Status of a gate whose sink is away, in every place that an operator reads."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.operate.cli.histories import NOW_MS, a_batch, a_gate
from tests.operate.cli.outcomes import planned
from tests.services.ledgers import gated_ledger
from typer.testing import CliRunner

from headrace.core.system import new_owner
from headrace.errors import OptionError
from headrace.gate.control.hold import SinkOutage
from headrace.gate.ledger.gates import GateClaim, GateQuery
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status
from headrace.operate.cli.app import app
from headrace.operate.dashboard.action_forms import perform
from headrace.operate.dashboard.live import LedgerLink
from headrace.operate.dashboard.pages import Site, environment
from headrace.operate.metrics.scrape import exposition
from headrace.operate.status.actions import drain_state
from headrace.operate.status.explanation import explain
from headrace.operate.status.lags import GateLag
from headrace.operate.status.moment import read_histories, take_snapshot
from headrace.operate.status.needs import headline
from headrace.operate.status.states import GateHistory, GateState, Urgency

REFUSED = "psycopg.OperationalError: 127.0.0.1:5432 refused"
SAID = "127.0.0.1:5432 refused (OperationalError)"
QUERY = GateQuery("me", None, None, "shop.py", None, None, NOW_MS - 999_999, NOW_MS + 9_999, 1)


def waiting(**changes: Any) -> GateHistory:
    running = a_batch(1, NOW_MS - 190_000, 1_450, status=Status.IN_PROGRESS)
    outage = SinkOutage(
        running.batch_key, NOW_MS - 185_000, 7, NOW_MS + 32_000, REFUSED, is_certain=True
    )
    gate = replace(a_gate(), sink_outage=outage.to_text())
    return replace(GateHistory(gate, (running,), query=QUERY), **changes)


def test_a_gate_that_waits_says_since_when_why_and_what_is_done() -> None:
    lag = GateLag(source_records=450, seconds=180)
    snapshot = take_snapshot(waiting(), NOW_MS, lag)
    assert (snapshot.state, snapshot.reason) == (GateState.WAITING, "its sink is away")
    text = headline(snapshot)
    assert text.startswith("Waiting for its sink since ")
    assert text.endswith(
        f"(3 min 5 s): {SAID}; tried 7 times, next in 32.0 s. 1,450 records wait, the oldest for"
        " 3 min 0 s."
    )
    (need,) = snapshot.needs
    assert (need.kind, need.urgency, need.records) == ("waiting", Urgency.SOON, 1_450)
    assert (need.sentence, need.command) == (text, "headrace retry orders")


def test_what_may_be_the_handlers_fault_is_no_word_on_the_sink() -> None:
    doubt = SinkOutage(
        "run 1", NOW_MS - 9_000, 2, NOW_MS + 900, "KeyError: 'kye'", is_certain=False
    )
    gate = replace(a_gate(), sink_outage=doubt.to_text())
    snapshot = take_snapshot(waiting(gate=gate), NOW_MS)
    assert snapshot.reason == "no part of its batch passes"
    text = headline(snapshot)
    assert text.startswith("Waiting with a batch of which no part passes since ")
    assert ": 'kye' (KeyError); tried 2 times, next in 0.90 s." in text
    assert "sink" not in text


def test_the_retention_that_is_left_comes_first() -> None:
    snapshot = take_snapshot(waiting(), NOW_MS, GateLag(seconds=180, retention_left_s=600))
    assert [need.kind for need in snapshot.needs] == ["retention", "waiting"]


@pytest.mark.parametrize(
    "changes",
    [
        {"query": None},
        {"batches": (a_batch(2, NOW_MS - 1_000, 500, status=Status.IN_PROGRESS),)},
        {"gate": replace(a_gate(), sink_outage="{}")},
    ],
)
def test_what_is_left_of_an_outage_is_none(changes: dict[str, Any]) -> None:
    snapshot = take_snapshot(waiting(**changes), NOW_MS)
    assert snapshot.waiting is None
    assert snapshot.state is not GateState.WAITING


def test_a_program_that_has_ended_while_its_batch_waited_has_been_interrupted() -> None:
    """Seen: "Overdue" for ever, after a Ctrl-C."""
    gate = replace(waiting().gate, ended="stopped", ended_ms=NOW_MS - 50_000)
    snapshot = take_snapshot(waiting(gate=gate, query=None), NOW_MS)
    assert snapshot.state is GateState.INTERRUPTED
    assert "its next start runs the batch again" in headline(snapshot)


def test_a_drain_says_what_it_waits_for(ledger: Ledger) -> None:
    ledger.operator_limits.drain("orders", "ada", "maintenance")
    state = drain_state(ledger, "orders")
    assert state.sentence.startswith("orders: its batch waits for its sink")
    assert "`headrace retry orders`" in state.sentence


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'headrace.db'}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """A gate whose newest batch waits for its sink."""
    with gated_ledger(url, "orders", planned(0, 10)) as opened:
        claim = GateClaim("orders", new_owner(), None, None, "shop.py", 1_000, "kafka", "pid")
        assert opened.gates.claim(claim, 60_000) is None
        key = opened.batches.begin(planned(10, 20)).batch_key
        now_ms = opened.database_time_ms()
        outage = SinkOutage(key, now_ms - 60_000, 3, now_ms + 30_000, REFUSED, is_certain=True)
        opened.sink_outages.keep("orders", outage)
        yield opened


@pytest.mark.parametrize(
    ("driver", "checkpoint", "is_of_the_query"),
    [("a program", None, True), ("another", None, False), ("a program", "/own", False)],
)
def test_a_gate_of_the_same_query_waits_with_it(
    ledger: Ledger, driver: str, checkpoint: str | None, is_of_the_query: bool
) -> None:
    """A join has one handler, and the batch of its other gate is never called by itself."""
    with_handler, other = new_owner(), new_owner()
    ledger.gates.release("orders", next(iter(ledger.gates.last_queries().values()))[0].owner)
    for gate, owner, program in (("orders", with_handler, "a program"), ("rates", other, driver)):
        claim = GateClaim(gate, owner, program, "a reader", "shop.py", 1_000, "kafka", "pid")
        assert ledger.gates.claim(claim, 60_000) is None
    ledger.gates.set_checkpoint("orders", with_handler, "/checkpoint")
    if checkpoint is not None:
        ledger.gates.set_checkpoint("rates", other, checkpoint)
    ledger.batches.begin(planned(0, 10, gate="rates"))
    gate_row = ledger.gates.get("rates")
    assert gate_row is not None
    (history,) = read_histories(ledger, [gate_row])
    assert history.waits_with == ("orders" if is_of_the_query else None)
    late = take_snapshot(history, ledger.database_time_ms() + 300_000)
    (need,) = late.needs
    if is_of_the_query:
        assert need.sentence.endswith("; its query waits for the sink of gate 'orders'.")
        assert (need.urgency, need.command) == (Urgency.WATCH, "headrace retry orders")
    else:
        assert need.sentence.endswith("; Spark has not called its handler yet.")


def test_why_and_metrics_say_it_too(ledger: Ledger) -> None:
    gate = ledger.gates.get("orders")
    assert gate is not None
    found = explain(ledger, gate)
    assert found is not None
    (said,) = [each.sentence for each in found.sentences if each.about == "sink"]
    assert said.endswith(f"so nothing more is admitted: {SAID}.")
    text = exposition(ledger).decode()
    (line,) = [each for each in text.splitlines() if each.startswith("headrace_sink_away_seconds{")]
    assert 60 <= float(line.split()[-1]) < 600
    assert ledger.receivers.stream_rate("orders", "journal").waits


def test_somebody_tries_at_once_by_a_command_or_on_the_page(ledger: Ledger, url: str) -> None:
    command = ["retry", "orders", "--ledger", url, "--by", "ada", "--json"]
    done = CliRunner().invoke(app, command)
    assert json.loads(done.stdout) == {"gate": "orders", "sink": True, "batches": 0}
    assert ledger.sink_outages.is_asked("orders")
    outage = ledger.sink_outages.get("orders")
    assert outage is not None
    ledger.sink_outages.keep("orders", outage)
    assert not ledger.sink_outages.is_asked("orders")
    site = Site(environment(), LedgerLink(url), {})
    form = {"gate": "orders", "why": "it is back"}
    assert perform(site, "retry-sink", form, "Ada") == "Gate orders tries its sink now."
    assert ledger.sink_outages.is_asked("orders")
    assert {each.by for each in ledger.operator_limits.history(None)} == {"ada", "Ada"}
    ledger.sink_outages.end("orders")
    with pytest.raises(OptionError, match="does not wait for its sink any more"):
        perform(site, "retry-sink", form, "Ada")
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code != 0
    assert "No batch of gate 'orders' waits for its sink or a backfill" in str(refused.exception)


def test_failed_batches_do_not_wait_for_their_backfill_either(url: str) -> None:
    with gated_ledger(url, "orders") as ledger:
        key = ledger.batches.begin(planned(0, 10)).batch_key
        ledger.batches.fail(key, ValueError("no price"))
        done = CliRunner().invoke(app, ["retry", "orders", "--ledger", url])
        assert done.stdout == (
            "orders: 1 failed batch does not wait for the next backfill any more.\n"
        )
        row = ledger.batches.get(key)
        assert row is not None and row.retry_ms is not None
